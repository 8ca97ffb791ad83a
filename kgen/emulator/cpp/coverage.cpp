// Which code of a kernel runs: a kernel compiled for it calls the hook below at the start of each basic block.
#include "machine.h"

extern "C" void __sanitizer_cov_trace_pc() {
  if (emu::current == nullptr) return;  // Python asks for the sizes of parameters
  emu::Session* session = emu::current->worker->session;
  uintptr_t at = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - session->image_begin;
  if (at < session->launch->code_bytes) session->launch->code_seen[at] = 1;
}
