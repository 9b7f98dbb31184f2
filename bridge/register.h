// register.h - everything that torch learns from the bridge, one function per file. module.cpp calls each once at load, in
// this order; nothing is registered by static initialisers, so that a torch of another version is refused before.
#pragma once

namespace torch_tpu {

void register_allocator();
void register_guard();
void register_host_allocator();
void register_hooks();
void register_basics();
void register_counted();
void register_kernels();
void register_fallback();
void register_sparse();
void register_nested();
void register_autocast();
void register_attention();
void register_linalg();
void register_site();
void register_diagnostics();
void register_profiler();

} // namespace torch_tpu
