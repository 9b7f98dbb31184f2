// origin.h - where compiled code comes from: everything but the program and its options that decides it.
//
// That is the plugin file, byte by byte, its platform, version and PJRT API, the kind and number of devices, environment
// variables that XLA reads, on a host platform its CPU, and the form of the entries. A plugin's blob may load in another plugin
// without complaint and do anything then (seen: API 0.115's in 0.106), so the key has to tell them apart.
#ifndef TT_CACHE_ORIGIN_H_
#define TT_CACHE_ORIGIN_H_

#include <stdint.h>

#include "base/status.h"
#include "cache/disk.h"
#include "cache/sha256.h"
#include "pjrt/client.h"

// *out_refusal is NULL, or why code of this client cannot be kept (lives for ever): its plugin cannot turn executables into
// bytes and back, or something above cannot be read. Found out once per process; the hash of the plugin file and whether it
// serialises are kept in the disk's plugins/, since reading 200 MB at each start would be felt. Errors: TT_OUT_OF_MEMORY.
tt_status tt_origin_get(const tt_disk *disk, tt_client *client, uint8_t out_digest[TT_SHA256_SIZE],
                        const char **out_refusal);

// Tests only: forgets what was found out.
void tt_origin_forget(void);

#endif // TT_CACHE_ORIGIN_H_
