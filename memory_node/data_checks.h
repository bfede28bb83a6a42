// SPDX-License-Identifier: Apache-2.0
//
// Whether this build puts checksums of their data into the headers of windows of K and V
// (plan/data_checksum.h): CMake's LAMINA_CHECK_DATA chooses the file. Who gets such a window
// compares them in every build.

#pragma once

namespace lamina::memory_node {

bool ChecksData();

}  // namespace lamina::memory_node
