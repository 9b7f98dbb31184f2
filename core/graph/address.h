// address.h - the addresses that storages show to torch.
//
// One reservation without access rights (16 TiB where the system allows it) serves all devices, so that torch's pointer
// arithmetic, overlap tests and pointer-to-device questions work and a stray dereference faults. It is dealt out in slabs,
// each to one device; blocks are powers of two of at least 64 bytes and are used again last in, first out.
//
// Any thread may call.
#ifndef TT_GRAPH_ADDRESS_H_
#define TT_GRAPH_ADDRESS_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { TT_MAX_DEVICES = 256 }; // device indices of one process

// Takes a block of `byte_size` (> 0) bytes, 64-byte aligned, for device 0 .. TT_MAX_DEVICES - 1.
// Errors: TT_OUT_OF_MEMORY when the range or the host's memory is exhausted.
tt_status tt_address_take(int device_index, int64_t byte_size, void **out_address);
// Gives a block back; `byte_size` as it was taken. Cannot fail.
void tt_address_give_back(int device_index, void *address, int64_t byte_size);
// Do both sizes take the same kind of block, so that a resized storage may keep its address?
bool tt_address_same_block(int64_t byte_size, int64_t other_byte_size);
// Is `address` inside a slab, and of which device? Lock-free.
bool tt_address_device(const void *address, int *out_device_index);

#endif // TT_GRAPH_ADDRESS_H_
