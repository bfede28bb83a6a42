// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace lamina {

// Raises this process's soft limit on open files to the hard one. Each connection, and each shared
// memory segment of a peer, is a file, and login shells usually start with 1024. Failing to raise
// it changes nothing; whoever runs out of files then says so.
void RaiseFileLimit();

}  // namespace lamina
