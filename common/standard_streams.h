// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace lamina {

// Occupies the descriptors 0, 1 and 2 that are closed, so that no file or socket of ours gets them:
// what is printed would go there, and what is read would come from there. Using one fails (EBADF),
// as before. Libraries may have taken one before main(): then it runs the program again, once. Call
// it first of all in main().
void KeepStandardStreams(char** argv);

}  // namespace lamina
