// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lamina::kernels::cpu {
namespace {

uintptr_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// How many of the pages that lie whole in these bytes are in memory.
size_t PagesOf(const std::byte* data, size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (AddressOf(data) + page - 1) / page * page;
  const uintptr_t end = (AddressOf(data) + bytes) / page * page;
  std::vector<unsigned char> there((end - first) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(first), end - first, there.data()), 0);
  return static_cast<size_t>(std::count_if(there.begin(), there.end(),
                                           [](unsigned char state) { return (state & 1) != 0; }));
}

// The flags of the mapping that has the address, as /proc/self/smaps writes them.
std::string FlagsOf(const void* data) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    const size_t dash = line.find('-');
    if (dash != std::string::npos && line.find(' ') > dash && line.find(':') > dash) {
      inside = std::stoull(line.substr(0, dash), nullptr, 16) <= AddressOf(data) &&
               AddressOf(data) < std::stoull(line.substr(dash + 1), nullptr, 16);
    } else if (inside && line.starts_with("VmFlags:")) {
      return line;
    }
  }
  return "";
}

TEST(WeightMemoryTest, BytesAreZeroAlignedAndOnesOwn) {
  std::vector<WeightMemory> all;
  const std::vector<size_t> sizes = {0, 1, 127, 128, 4095, 1 << 20, (5 << 20) + 3, 9 << 20};
  for (size_t i = 0; i < sizes.size(); ++i) {
    all.emplace_back(sizes[i]);
    std::byte* const data = all.back().data();
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(AddressOf(data) % WeightMemory::kAlignment, 0);
    EXPECT_TRUE(std::all_of(data, data + sizes[i], [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(data, sizes[i], static_cast<std::byte>(i + 1));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::byte* const data = all[i].data();
    EXPECT_TRUE(std::all_of(data, data + sizes[i],
                            [i](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
  }
}

TEST(WeightMemoryTest, PagesOfALayerThatEndsGoBackWhileOthersStay) {
  const size_t bytes = size_t{3} << 20;
  WeightMemory stays(bytes);
  WeightMemory ends(bytes);
  std::fill_n(stays.data(), bytes, std::byte{1});
  std::fill_n(ends.data(), bytes, std::byte{2});
  const std::byte* const was = ends.data();
  EXPECT_GT(PagesOf(was, bytes), 0);

  ends = WeightMemory();

  EXPECT_EQ(ends.data(), nullptr);
  EXPECT_EQ(PagesOf(was, bytes), 0);
  EXPECT_TRUE(std::all_of(stays.data(), stays.data() + bytes,
                          [](std::byte b) { return b == std::byte{1}; }));
}

TEST(WeightMemoryTest, PagesAreHugeWhereTheSystemHasThem) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  const WeightMemory shared(1 << 20);
  const WeightMemory own(16 << 20);
  for (const WeightMemory* memory : {&shared, &own}) {
    EXPECT_NE(FlagsOf(memory->data()).find(" hg"), std::string::npos) << FlagsOf(memory->data());
  }
}

TEST(WeightMemoryTest, WhatTheHostDoesNotHaveIsNull) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 4}) {
    const uint64_t before = WeightMemory::AllBytes();
    EXPECT_EQ(WeightMemory(bytes).data(), nullptr);
    EXPECT_EQ(WeightMemory::AllBytes(), before);
  }
}

TEST(WeightMemoryTest, MovedMemoryHasOneOwner) {
  const uint64_t before = WeightMemory::AllBytes();
  {
    WeightMemory first(1000);
    std::byte* const data = first.data();
    WeightMemory second = std::move(first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(WeightMemory::AllBytes() - before, 1000u);
    second = WeightMemory(500);
    EXPECT_NE(second.data(), nullptr);
    EXPECT_EQ(WeightMemory::AllBytes() - before, 500u);
    const WeightMemory own(9 << 20);
    EXPECT_EQ(WeightMemory::AllBytes() - before, 500u + (9u << 20));
  }
  EXPECT_EQ(WeightMemory::AllBytes(), before);
}

}  // namespace
}  // namespace lamina::kernels::cpu
