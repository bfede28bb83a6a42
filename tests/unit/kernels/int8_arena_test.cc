// SPDX-License-Identifier: Apache-2.0
//
// Copies of INT8 out of an arena and back into one, against the arena's own arrays, byte by byte.
#include "kernels/int8_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/kv_form.h"
#include "kernels/int8_kv.h"
#include "tests/unit/kernels/attention_fixture.h"

namespace lamina::kernels {
namespace {

constexpr uint32_t kHeads = 2;
constexpr uint32_t kSlots = 500;

void Fill(Int8Arena& arena, uint32_t seed) {
  std::mt19937 random(seed);
  const Int8View view = arena.View(0);
  std::generate_n(view.k, arena.bytes(), [&] { return static_cast<uint8_t>(random()); });
}

// What one slot of a head has, by the definition of the layout.
std::string SlotOf(Int8Arena& arena, uint32_t head, uint32_t head_dim, size_t slot) {
  const Int8View view = arena.View(0, head);
  const size_t share = Int8ScalesOfSlot(head_dim);
  std::string bytes;
  for (size_t channel = 0; channel < head_dim; ++channel) {
    bytes.push_back(
        static_cast<char>(view.k[slot / 16 * 16 * head_dim + channel * 16 + slot % 16]));
    bytes.push_back(static_cast<char>(view.v[slot * head_dim + channel]));
  }
  bytes.append(reinterpret_cast<const char*>(view.k_scales + slot * share),
               share * sizeof(Int8Scale));
  bytes.append(reinterpret_cast<const char*>(view.v_scales + slot), sizeof(Int8Scale));
  return bytes;
}

// Out of some slots into a block of its own, and from there into other slots of another arena.
TEST(UnloadInt8Test, SlotsComeBackElsewhereAndOthersStay) {
  for (const uint32_t head_dim : {16u, 48u, 64u, 128u}) {
    const AttentionDescriptor d = Descriptor(head_dim, kHeads, 1);
    Int8Arena from = *Int8Arena::Create({&d, 1}, kSlots);
    Int8Arena to = *Int8Arena::Create({&d, 1}, kSlots);
    Int8Arena before = *Int8Arena::Create({&d, 1}, kSlots);
    Fill(from, 1);
    Fill(to, 2);
    Fill(before, 2);
    constexpr uint32_t kTokens = 128;
    const std::vector<Extent> out = {{.first_slot = 33, .tokens = 70},
                                     {.first_slot = 300, .tokens = 1},
                                     {.first_slot = 160, .tokens = 57}};
    const std::vector<Extent> in = {{.first_slot = 16, .tokens = 48},
                                    {.first_slot = 201, .tokens = 3},
                                    {.first_slot = 320, .tokens = 77}};
    Int8Arena block = *Int8Arena::Create({&d, 1}, kTokens);
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (const auto& [first, tokens] : std::vector<std::pair<uint32_t, uint32_t>>{
               {0, 64}, {64, 1}, {65, 60}, {125, 0}, {125, 3}}) {
        LoadInt8(head_dim, from.View(0, head), out, first, tokens, block.View(0, head));
        UnloadInt8(head_dim, block.View(0, head), in, first, tokens, to.View(0, head));
      }
    }

    std::vector<uint32_t> slots_out, slots_in;
    for (const Extent& extent : out) {
      for (uint32_t i = 0; i < extent.tokens; ++i) {
        slots_out.push_back(extent.first_slot + i);
      }
    }
    for (const Extent& extent : in) {
      for (uint32_t i = 0; i < extent.tokens; ++i) {
        slots_in.push_back(extent.first_slot + i);
      }
    }
    for (uint32_t head = 0; head < kHeads; ++head) {
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const auto at = std::find(slots_in.begin(), slots_in.end(), slot);
        const std::string wanted =
            at == slots_in.end() ? SlotOf(before, head, head_dim, slot)
                                 : SlotOf(from, head, head_dim, slots_out[at - slots_in.begin()]);
        ASSERT_EQ(SlotOf(to, head, head_dim, slot), wanted) << head_dim << " slot " << slot;
      }
    }
  }
}

// From each place in a tile to each, up to more than a tile.
TEST(UnloadInt8Test, AnyNumberOfNeighboursComesBackAndOthersStay) {
  constexpr uint32_t kHeadDim = 16;
  constexpr uint32_t kFewSlots = 48;
  const AttentionDescriptor d = Descriptor(kHeadDim, 1, 1);
  Int8Arena from = *Int8Arena::Create({&d, 1}, kFewSlots);
  Int8Arena to = *Int8Arena::Create({&d, 1}, kFewSlots);
  Int8Arena before = *Int8Arena::Create({&d, 1}, kFewSlots);
  Fill(from, 1);
  Fill(before, 2);
  const size_t bytes = KvSlotBytes({&d, 1}, KvForm::kInt8) * kFewSlots;
  for (uint32_t first = 0; first < 16; ++first) {
    for (uint32_t slot = 0; slot < 16; ++slot) {
      for (uint32_t tokens = 1; tokens <= 17; ++tokens) {
        std::copy_n(before.View(0).k, bytes, to.View(0).k);
        const std::vector<Extent> slots = {{.first_slot = 0, .tokens = first},
                                           {.first_slot = slot, .tokens = tokens}};
        UnloadInt8(kHeadDim, from.View(0), slots, first, tokens, to.View(0));
        for (uint32_t i = 0; i < kFewSlots; ++i) {
          const bool moved = i >= slot && i < slot + tokens;
          ASSERT_EQ(SlotOf(to, 0, kHeadDim, i), moved ? SlotOf(from, 0, kHeadDim, first + i - slot)
                                                      : SlotOf(before, 0, kHeadDim, i))
              << tokens << " from " << first << " to " << slot;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lamina::kernels
