// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "kernels/arena_memory.h"

namespace lamina::kernels {
namespace {

const std::vector<AttentionDescriptor> kLayers = {
    {.query_heads = 4, .kv_heads = 2, .head_dim = 16},
    {.query_heads = 3, .kv_heads = 1, .head_dim = 64},
    {.query_heads = 2, .kv_heads = 2, .head_dim = 128},
};

TEST(KvArenaTest, SlotHasKAndVOfAllLayers) {
  EXPECT_EQ(KvArena::SlotBytes(kLayers), 2u * 2 * (32 + 64 + 256));
  EXPECT_EQ(KvArena::SlotBytes({}), 0u);
}

// Every element of every plane is its own: what is written anywhere is found there after all else
// has been written.
TEST(KvArenaTest, PlanesNeverOverlap) {
  constexpr uint32_t kSlots = 37;
  auto arena = KvArena::Create(kLayers, kSlots);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(arena->slots(), kSlots);
  EXPECT_GE(arena->bytes(), KvArena::SlotBytes(kLayers) * kSlots);
  const auto visit = [&](const auto& body) {
    uint16_t value = 0;
    for (uint32_t layer = 0; layer < kLayers.size(); ++layer) {
      for (BFloat16* plane : {arena->k(layer), arena->v(layer)}) {
        for (uint32_t head = 0; head < kLayers[layer].kv_heads; ++head) {
          for (uint32_t i = 0; i < kSlots * kLayers[layer].head_dim; ++i) {
            body(plane[head * arena->head_stride(layer) + i], ++value);
          }
        }
      }
    }
  };
  visit([](BFloat16& element, uint16_t value) { element.bits = value; });
  visit([](const BFloat16& element, uint16_t value) { ASSERT_EQ(element.bits, value); });
}

// Linux would hand it out page by page, and kill somebody at the end.
TEST(KvArenaTest, MoreThanTheHostHasIsRefusedBeforeAnyIsTaken) {
  const std::vector<AttentionDescriptor> large(
      20, {.query_heads = 8, .kv_heads = 8, .head_dim = 128});  // 80 KiB a slot: 119 TiB.

  const auto arena = KvArena::Create(large, 1'600'000'000);

  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()),
              testing::AllOf(testing::HasSubstr("no room for 119.2 TiB of KV"),
                             testing::HasSubstr("leaves"), testing::HasSubstr("capacity")));
}

// By several threads, where there are cores.
TEST(ArenaMemoryTest, EveryPageOfALargeOneIsThere) {
  const auto memory = ArenaMemory::Create((uint64_t{768} << 20) - 5);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->bytes(), uint64_t{768} << 20);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there(memory->bytes() / page);
  ASSERT_EQ(mincore(memory->data(), memory->bytes(), there.data()), 0) << std::strerror(errno);
  EXPECT_EQ(std::count_if(there.begin(), there.end(), [](unsigned char one) { return one & 1; }),
            static_cast<int64_t>(there.size()));
}

TEST(KvArenaTest, ViewIsThatOfItsLayer) {
  auto arena = KvArena::Create(kLayers, 8);
  ASSERT_TRUE(arena.ok()) << arena.status();

  const KvView view = arena->View(1);

  EXPECT_EQ(view.k, arena->k(1));
  EXPECT_EQ(view.v, arena->v(1));
  EXPECT_EQ(view.head_stride, arena->head_stride(1));
}

TEST(KvArenaTest, MovesWithItsMemory) {
  auto arena = KvArena::Create(kLayers, 8);
  ASSERT_TRUE(arena.ok()) << arena.status();
  arena->k(2)[5].bits = 77;

  KvArena moved = *std::move(arena);

  EXPECT_EQ(moved.k(2)[5].bits, 77);
  auto other = KvArena::Create(kLayers, 4);
  ASSERT_TRUE(other.ok());
  moved = *std::move(other);
  EXPECT_EQ(moved.slots(), 4u);
}

TEST(KvArenaTest, RefusesNoSlotsNoLayersAndMoreThanAnAddressCanSay) {
  EXPECT_EQ(KvArena::Create(kLayers, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KvArena::Create({}, 8).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<AttentionDescriptor> wide(500,
                                              {.query_heads = 64, .kv_heads = 64, .head_dim = 256});
  const auto huge = KvArena::Create(wide, 1u << 31);
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(huge.status().message()), ::testing::HasSubstr("2147483648 slots"));
}

}  // namespace
}  // namespace lamina::kernels
