// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pair_products.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace lamina::kernels::cpu {
namespace {

bool SlowWith(const std::string& vendor, const std::string& flags) {
  std::istringstream cpuinfo("processor\t: 0\nvendor_id\t: " + vendor +
                             "\nmodel\t\t: 207\nflags\t\t: " + flags + "\n\nprocessor\t: 1\n");
  return PairProductsAreSlow(cpuinfo);
}

TEST(PairProductsTest, AreSlowOnIntelsCoresSinceGoldenCove) {
  EXPECT_TRUE(SlowWith("GenuineIntel", "fpu avx512_bf16 avx512_fp16 serialize"));
  EXPECT_TRUE(SlowWith("GenuineIntel", "fpu avx512_bf16 avx512_fp16"));
  EXPECT_FALSE(SlowWith("GenuineIntel", "fpu avx512f avx512_bf16"));  // Cooper Lake.
  EXPECT_FALSE(SlowWith("GenuineIntel", "fpu avx512_fp16_other"));
  EXPECT_FALSE(SlowWith("AuthenticAMD", "fpu avx512_bf16 avx512_fp16"));
}

TEST(PairProductsTest, OfATextThatSaysNothingTheAnswerIsNo) {
  for (const char* text : {"", "\n", "vendor_id\t: GenuineIntel\n", "flags\t: avx512_fp16\n"}) {
    std::istringstream cpuinfo(text);
    EXPECT_FALSE(PairProductsAreSlow(cpuinfo)) << text;
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
