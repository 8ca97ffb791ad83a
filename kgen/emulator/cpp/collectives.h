// How lanes of a warp meet.
#pragma once

#include "machine.h"

namespace emu {

// `lane` comes to an operation of the lanes of `mask`; `detail` tells variants of `kind` apart, which must agree. True
// for the last to come: it carries the operation out and then calls `release`. False for the others, once that has been
// done.
bool arrive(Lane* lane, WaitKind kind, int detail, unsigned mask, const void* pc);
void release(Lane* lane);

}  // namespace emu
