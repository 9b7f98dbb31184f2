// host_allocator.h - pinned memory: pages of the host that a transfer may read or write while the program goes on.
#pragma once

namespace torch_tpu {

// Does `address` lie in a live pinned block?
bool is_pinned(const void *address);

} // namespace torch_tpu
