// SPDX-License-Identifier: Apache-2.0
//
// Huge pages for malloc: programs whose memory is read all over once a step (weights; sequences of
// a scheduler) lose much of their time to address translations on small pages, most of all in
// virtual machines.

#pragma once

namespace lamina {

// Asks malloc for huge pages. The C library reads this setting from the environment before main():
// this sets it and runs the program again, once, as the same process. To be called first in main().
// Does nothing where GLIBC_TUNABLES is set already; where the program cannot be started again, it
// goes on with small pages and logs a warning.
void EnsureHugePagesForMalloc(char** argv);

// Has malloc keep what is freed, up to 256 MiB at the end of its heap. Else vectors of some MB that
// each step makes anew go back to the kernel and come again, as pages that it has to clear. A
// program that peaks trims its heap itself (malloc_trim()).
void KeepFreedMemory();

}  // namespace lamina
