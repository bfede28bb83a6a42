// SPDX-License-Identifier: Apache-2.0
//
// Files and folders in which the kernel shows what there is. What cannot be read is empty.

#pragma once

#include <string>
#include <vector>

namespace lamina::doctor {

std::string FileText(const std::string& path);
std::string FirstLine(const std::string& path);
// Names, sorted.
std::vector<std::string> Entries(const std::string& folder);

}  // namespace lamina::doctor
