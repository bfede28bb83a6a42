// SPDX-License-Identifier: Apache-2.0
//
// write_random_model DIRECTORY: a small random model, for clusters in the guest.
#include <cstdio>

#include "tests/support/random_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_random_model DIRECTORY\n", stderr);
    return 2;
  }
  const absl::Status status = lamina::test_support::WriteRandomModel({}, argv[1]);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
