// SPDX-License-Identifier: Apache-2.0
//
// The function that a fuzz target defines, with libFuzzer's name for it: takes any bytes, returns
// 0, and ends the program when a promise is broken.
//
// fuzz_driver.cc calls it; libFuzzer could.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Inputs to begin with besides those of the folder: for formats that are not text, of which the
// tree holds no files. no_seeds.cc has none.
std::vector<std::string> GeneratedSeeds();

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
