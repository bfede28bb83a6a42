// SPDX-License-Identifier: Apache-2.0
//
// Layers in blocks have the bits of the same layers widened to bf16: over all types, odd shapes, 1
// to 270 rows, threads, and instruction sets. CTest runs this file again with older ones, as
// linear_test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "kernels/block_type.h"
#include "kernels/dense.h"
#include "kernels/int8_weights.h"
#include "model/gguf/dequantize.h"
#include "tests/unit/kernels/dense_test_util.h"
#include "tests/unit/kernels/instruction_sets.h"

namespace lamina::kernels {
namespace {

// A binary16 of moderate size and either sign, or now and then a subnormal or zero.
uint16_t RandomHalf(Prng& prng) {
  const auto sign = static_cast<uint16_t>(prng.Below(2) << 15);
  const uint64_t exponent = prng.Below(16) == 0 ? 0 : 4 + prng.Below(8);
  return static_cast<uint16_t>(sign | exponent << 10 | prng.Below(1024));
}

void SetHalf(std::vector<uint8_t>& bytes, size_t at, Prng& prng) {
  const uint16_t half = RandomHalf(prng);
  std::memcpy(bytes.data() + at, &half, sizeof(half));
}

// One row of random blocks: all bytes are random, and scales finite.
std::vector<uint8_t> RandomRow(const BlockTypeInfo& info, size_t in_features, Prng& prng) {
  std::vector<uint8_t> bytes((in_features + info.elements - 1) / info.elements * info.bytes);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(prng.Below(256));
  }
  for (size_t block = 0; block < bytes.size(); block += info.bytes) {
    switch (info.type) {
      case BlockType::kMxfp4:
        bytes[block] =
            static_cast<uint8_t>(prng.Below(16) == 0 ? prng.Below(3) : 115 + prng.Below(20));
        break;
      case BlockType::kQ2K:
        SetHalf(bytes, block + 80, prng);
        SetHalf(bytes, block + 82, prng);
        break;
      case BlockType::kQ3K:
        SetHalf(bytes, block + 108, prng);
        break;
      case BlockType::kQ6K:
        SetHalf(bytes, block + 208, prng);
        break;
      case BlockType::kInt8: {
        const BFloat16 scale = ToBFloat16(std::fabs(RandomFloats(1, prng.Below(1u << 30))[0]));
        std::memcpy(bytes.data() + block, &scale, sizeof(scale));
        break;
      }
      case BlockType::kQ41:
      case BlockType::kQ51:
      case BlockType::kQ4K:
      case BlockType::kQ5K:
        SetHalf(bytes, block + 2, prng);
        [[fallthrough]];
      default:
        SetHalf(bytes, block, prng);
    }
  }
  if (in_features % info.elements != 0) {
    std::fill(
        bytes.end() - static_cast<std::ptrdiff_t>(info.elements - in_features % info.elements),
        bytes.end(), uint8_t{0});
  }
  return bytes;
}

// A layer of parts of one type each, as blocks and widened by the reader of files.
class BlockLayer {
 public:
  struct Part {
    BlockType type;
    size_t features;
  };

  BlockLayer(const std::vector<Part>& parts, size_t in_features, bool bias, uint64_t seed)
      : in_features_(in_features) {
    Prng prng(seed);
    for (const Part& part : parts) {
      const BlockTypeInfo& info = InfoOf(part.type);
      pointers_.emplace_back();
      for (size_t row = 0; row < part.features; ++row) {
        rows_.push_back(RandomRow(info, in_features, prng));
        pointers_.back().push_back(rows_.back().data());
        AppendWidened(info, rows_.back());
      }
      blocks_.push_back({.type = part.type, .rows = {}});
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].rows = pointers_[i];
    }
    bias_ = bias ? RandomFloats(rows_.size(), seed + 1) : std::vector<float>();
  }

  size_t in_features() const { return in_features_; }
  size_t out_features() const { return rows_.size(); }
  uint64_t block_bytes() const {
    uint64_t bytes = 0;
    for (const auto& row : rows_) {
      bytes += row.size();
    }
    return bytes;
  }

  std::vector<uint8_t> Bytes() const {
    std::vector<uint8_t> bytes;
    for (const auto& row : rows_) {
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    return bytes;
  }
  const BFloat16* widened() const { return widened_.data(); }

  absl::StatusOr<std::unique_ptr<PackedLinear>> PackBlocks(Dense& dense) const {
    return dense.PackBlocks(blocks_, in_features_, bias_);
  }
  std::unique_ptr<PackedLinear> PackWidened(Dense& dense) const {
    return *dense.Pack(widened_.data(), DType::kBF16, out_features(), in_features_, bias_);
  }

 private:
  void AppendWidened(const BlockTypeInfo& info, const std::vector<uint8_t>& row) {
    if (info.type == BlockType::kInt8) {
      std::vector<float> inputs(in_features_);
      Int8Values(row.data(), absl::MakeSpan(inputs));
      std::transform(inputs.begin(), inputs.end(), std::back_inserter(widened_), ToBFloat16);
      return;
    }
    const model::GgufTensorType* type = model::FindGgufTensorType(info.name);
    std::vector<float> values(info.elements);
    for (size_t block = 0; block < row.size(); block += info.bytes) {
      type->dequantize(row.data() + block, values.data());
      for (const float value : values) {
        widened_.push_back(ToBFloat16(value));
      }
    }
  }

  size_t in_features_;
  std::vector<std::vector<uint8_t>> rows_;
  std::vector<std::vector<const uint8_t*>> pointers_;
  std::vector<BlockRows> blocks_;
  std::vector<BFloat16> widened_;
  std::vector<float> bias_;
};

void ExpectSameBits(Dense& dense, const BlockLayer& layer, size_t rows, size_t gap) {
  const auto packed = layer.PackBlocks(dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto widened = layer.PackWidened(dense);
  Activations in = Activations::Random(rows, layer.in_features(), DType::kBF16, rows, gap);
  Activations got(rows, layer.out_features(), DType::kF32, gap);
  Activations expected(rows, layer.out_features(), DType::kF32, gap);
  dense.Linear(**packed, in.view(), 0, got.floats());
  dense.Linear(*widened, in.view(), 0, expected.floats());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < layer.out_features(); ++j) {
      ASSERT_TRUE(SameBits(got.Get(i, j), expected.Get(i, j)))
          << dense.description() << ", row " << i << " of " << rows << ", feature " << j << " of "
          << layer.out_features() << ", " << layer.in_features() << " inputs: " << got.Get(i, j)
          << " and " << expected.Get(i, j);
    }
  }
}

void ExpectLookUps(Dense& dense, const PackedLinear& head, absl::Span<const uint32_t> ids,
                   const Activations& expected) {
  ASSERT_TRUE(dense.LooksUp(head));
  Activations got(ids.size(), head.in_features(), DType::kF32, 1);
  dense.LookUp(head, ids, got.floats());
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < head.in_features(); ++j) {
      ASSERT_TRUE(SameBits(got.Get(i, j), expected.Get(i, j))) << "feature " << ids[i] << ", " << j;
    }
  }
}

// (type, loop, threads)
using Variant = std::tuple<size_t, DenseLoop, size_t>;

const char* LoopName(DenseLoop loop) {
  switch (loop) {
    case DenseLoop::kFastest:
      return "_best_";
    case DenseLoop::kFallbackGemm:
      return "_fallback_";
    case DenseLoop::kEmulatedTiles:
      return "_emulated_tiles_";
  }
  return "";
}

class BlockLinearTest : public testing::TestWithParam<Variant> {
 protected:
  const BlockTypeInfo& info() const { return BlockTypes()[std::get<0>(GetParam())]; }
  std::unique_ptr<Dense> Make() const {
    return MakeDense(DType::kBF16, std::get<1>(GetParam()), std::get<2>(GetParam()));
  }
};

INSTANTIATE_TEST_SUITE_P(Variants, BlockLinearTest,
                         testing::Combine(testing::Range(size_t{0}, BlockTypes().size()),
                                          testing::Values(DenseLoop::kFastest,
                                                          DenseLoop::kFallbackGemm,
                                                          DenseLoop::kEmulatedTiles),
                                          testing::Values(1, 3)),
                         [](const auto& param_info) {
                           return std::string(BlockTypes()[std::get<0>(param_info.param)].name) +
                                  LoopName(std::get<1>(param_info.param)) +
                                  std::to_string(std::get<2>(param_info.param));
                         });

TEST_P(BlockLinearTest, HasTheBitsOfTheWidenedLayer) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const size_t unit = info().elements;
  struct Shape {
    size_t units;
    size_t features;
    bool bias;
  };
  for (const Shape& shape : {Shape{1, 1, true}, Shape{2, 63, false}, Shape{9, 70, true},
                             Shape{unit == 32 ? size_t{50} : size_t{7}, 130, true}}) {
    const BlockLayer layer({{info().type, shape.features}}, shape.units * unit, shape.bias,
                           shape.features);
    for (const size_t rows : {1, 2, 3, 4, 7, 8, 9, 16, 64, 65, 130}) {
      ExpectSameBits(*dense, layer, rows, rows % 3);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(BlockLinearTest, WithItsActivationHasTheBitsOfBothCalls) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const BlockLayer layer({{info().type, 2 * 192}}, 2 * info().elements, true, 17);
  const auto packed = layer.PackBlocks(*dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  for (const size_t rows : {3, 9, 16, 24, 25, 65, 130}) {
    ExpectGatedBits(*dense, **packed, Activation::kSilu, rows, rows % 3);
    ASSERT_FALSE(HasFatalFailure());
  }
  // More inputs than are widened at once; and no biases, so that zeros are added.
  const BlockLayer deep({{info().type, 2 * 64}}, 1024 + info().elements, false, 23);
  const auto packed_deep = deep.PackBlocks(*dense);
  ASSERT_TRUE(packed_deep.ok()) << packed_deep.status();
  ExpectGatedBits(*dense, **packed_deep, Activation::kGeluTanh, 26, 1);
  const BlockLayer bare({{info().type, 2 * 128}}, info().elements, false, 29);
  const auto packed_bare = bare.PackBlocks(*dense);
  ASSERT_TRUE(packed_bare.ok()) << packed_bare.status();
  ExpectGatedBits(*dense, **packed_bare, Activation::kGeluTanh, 49, 2);
}

// A panel is widened once for twice the rows of a task; the last panels go in quarters.
TEST_P(BlockLinearTest, ManyRowsHaveTheBitsOfTheWidenedLayer) {
  const auto [type, loop, threads] = GetParam();
  if (threads != 1 || (loop == DenseLoop::kEmulatedTiles && info().elements > 32)) {
    GTEST_SKIP() << "once for each loop, and the emulation is slow";
  }
  for (const size_t workers : {1, 2}) {
    const std::unique_ptr<Dense> dense = MakeDense(DType::kBF16, loop, workers);
    if (!KeepsBlocks(*dense)) {
      GTEST_SKIP() << dense->description() << " takes no blocks";
    }
    const BlockLayer layer({{info().type, 2 * 8 * 64}}, info().elements, true, 19);
    const auto packed = layer.PackBlocks(*dense);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (const size_t rows : {130, 270}) {
      ExpectSameBits(*dense, layer, rows, 1);
      ExpectGatedBits(*dense, **packed, Activation::kSilu, rows, 2);
      ASSERT_FALSE(HasFatalFailure()) << workers << " threads";
    }
  }
}

// Strips of panels, which are widened without their neighbours.
TEST_P(BlockLinearTest, CutsForManyThreadsDoNotChangeBits) {
  const std::unique_ptr<Dense> one = Make();
  if (!KeepsBlocks(*one)) {
    GTEST_SKIP() << one->description() << " takes no blocks";
  }
  const std::unique_ptr<Dense> many = MakeDense(DType::kBF16, std::get<1>(GetParam()), 64);
  const BlockLayer layer({{info().type, 300}}, 2048, true, 11);
  const auto packed = layer.PackBlocks(*many);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto widened = layer.PackWidened(*one);
  for (const size_t rows : {1, 5, 9, 40}) {
    Activations in = Activations::Random(rows, 2048, DType::kBF16, rows);
    Activations got(rows, 300, DType::kF32);
    Activations expected(rows, 300, DType::kF32);
    many->Linear(**packed, in.view(), 0, got.floats());
    one->Linear(*widened, in.view(), 0, expected.floats());
    ASSERT_EQ(std::memcmp(got.floats().data, expected.floats().data, rows * 300 * 4), 0)
        << rows << " rows";
  }
}

TEST_P(BlockLinearTest, ColumnRangesHaveTheBitsOfTheWhole) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const BlockLayer layer({{info().type, 300}}, 2 * info().elements, true, 5);
  const auto packed = layer.PackBlocks(*dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  Activations in = Activations::Random(6, layer.in_features(), DType::kBF16, 6);
  Activations whole(6, 300, DType::kF32);
  dense->Linear(**packed, in.view(), 0, whole.floats());
  for (const auto& [first, cols] : {std::pair<size_t, size_t>{64, 100}, {128, 172}, {256, 3}}) {
    Activations part(6, cols, DType::kF32);
    dense->Linear(**packed, in.view(), first, part.floats());
    for (size_t i = 0; i < 6; ++i) {
      for (size_t j = 0; j < cols; ++j) {
        ASSERT_TRUE(SameBits(part.Get(i, j), whole.Get(i, first + j))) << first << " + " << j;
      }
    }
  }
}

TEST_P(BlockLinearTest, TablesInBlocksGiveTheRowsOfBF16) {
  const std::unique_ptr<Dense> dense = Make();
  const size_t width = 3 * info().elements;
  const BlockLayer layer({{info().type, 50}}, width, false, 13);
  const std::vector<uint8_t> bytes = layer.Bytes();
  const BlockTable table = {.type = info().type, .data = bytes.data(), .rows = 50, .width = width};
  ASSERT_TRUE(dense->EmbedsBlocks(table));
  for (const size_t count : {size_t{1}, size_t{16}, size_t{67}}) {  // 67: some twice.
    std::vector<uint32_t> ids(count);
    for (size_t i = 0; i < count; ++i) {
      ids[i] = static_cast<uint32_t>(i * 17 % 50);
    }
    Activations got(count, width, DType::kF32, 2);
    Activations expected(count, width, DType::kF32, 2);
    dense->EmbedBlocks(table, ids, got.floats());
    dense->Embed(layer.widened(), DType::kBF16, width, ids, expected.floats());
    if (KeepsBlocks(*dense)) {
      const auto packed = layer.PackBlocks(*dense);
      ASSERT_TRUE(packed.ok()) << packed.status();
      // Only of MXFP4 some weights are subnormal.
      EXPECT_TRUE(info().type == BlockType::kMxfp4 || dense->LooksUp(**packed));
      if (dense->LooksUp(**packed)) {
        ExpectLookUps(*dense, **packed, ids, expected);
      }
      ExpectLookUps(*dense, *layer.PackWidened(*dense), ids, expected);
    }
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < width; ++j) {
        ASSERT_TRUE(SameBits(got.Get(i, j), expected.Get(i, j))) << "row " << i << ", " << j;
      }
    }
  }
}

// What Place() is for: the bytes that products read lie elsewhere between them.
TEST_P(BlockLinearTest, ReadsItsBytesWhereTheyArePlaced) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const BlockLayer layer({{info().type, 80}}, info().elements, false, 6);
  const auto packed = layer.PackBlocks(*dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  Activations in = Activations::Random(3, layer.in_features(), DType::kBF16, 7);
  Activations before(3, 80, DType::kF32);
  dense->Linear(**packed, in.view(), 0, before.floats());
  const std::vector<absl::Span<std::byte>> pieces = (*packed)->Pieces();
  ASSERT_EQ(pieces.size(), 1u);
  std::vector<std::byte> elsewhere(pieces[0].size() + 64);
  auto* const aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(elsewhere.data()) + 63) / 64 * 64);
  std::copy(pieces[0].begin(), pieces[0].end(), aligned);
  std::byte* const at[] = {aligned};
  (*packed)->Place(at);
  Activations after(3, 80, DType::kF32);
  dense->Linear(**packed, in.view(), 0, after.floats());
  EXPECT_EQ(std::memcmp(before.floats().data, after.floats().data, 3 * 80 * sizeof(float)), 0);
}

// What stands before may not be there yet.
TEST_P(BlockLinearTest, FeaturesReadNothingBeforeTheirFirstByte) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const BlockLayer layer({{info().type, 208}}, info().elements, false, 9);
  const auto packed = layer.PackBlocks(*dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const absl::Span<std::byte> piece = (*packed)->Pieces()[0];
  for (const size_t first : {64, 128, 192}) {
    Activations in = Activations::Random(3, layer.in_features(), DType::kBF16, 7);
    Activations whole(3, 208 - first, DType::kF32);
    Activations part(3, 208 - first, DType::kF32);
    dense->Linear(**packed, in.view(), first, whole.floats());
    const size_t end = (*packed)->FirstByte(0, first);
    EXPECT_GT(end, piece.size() * (first - 64) / 208);
    ASSERT_LT(end, piece.size());
    std::fill_n(piece.begin(), end, std::byte{0xff});
    dense->Linear(**packed, in.view(), first, part.floats());
    EXPECT_EQ(std::memcmp(whole.floats().data, part.floats().data, 3 * (208 - first) * 4), 0)
        << first;
  }
}

TEST_P(BlockLinearTest, TakesTheFilesBytesAndLittleMore) {
  const std::unique_ptr<Dense> dense = Make();
  if (!KeepsBlocks(*dense)) {
    GTEST_SKIP() << dense->description() << " takes no blocks";
  }
  const BlockLayer layer({{info().type, 128}}, 512, false, 8);
  const auto packed = layer.PackBlocks(*dense);
  ASSERT_TRUE(packed.ok()) << packed.status();
  const auto bytes = static_cast<double>((*packed)->bytes());
  EXPECT_GE(bytes, static_cast<double>(layer.block_bytes()));
  EXPECT_LE(bytes, 1.07 * static_cast<double>(layer.block_bytes()) + 128 * sizeof(float));
}

class BlocksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!KeepsBlocks(*dense_)) {
      GTEST_SKIP() << dense_->description() << " takes no blocks";
    }
  }
  std::unique_ptr<Dense> dense_ = MakeDense(DType::kBF16, false, 2);
};

TEST_F(BlocksTest, PartsOfSeveralTypesStandInOneLayer) {
  const BlockLayer layer({{BlockType::kQ4K, 48}, {BlockType::kQ80, 32}, {BlockType::kQ6K, 21}}, 512,
                         true, 9);
  for (const size_t rows : {1, 5, 20}) {
    ExpectSameBits(*dense_, layer, rows, 1);
  }
}

// Rows of 8 bits need not be whole blocks: zeros complete them.
TEST_F(BlocksTest, RowsOfInt8EndAnywhere) {
  for (const DenseLoop loop :
       {DenseLoop::kFastest, DenseLoop::kFallbackGemm, DenseLoop::kEmulatedTiles}) {
    const std::unique_ptr<Dense> dense = MakeDense(DType::kBF16, loop, 3);
    if (!KeepsBlocks(*dense)) {
      continue;
    }
    for (const size_t inputs : {1, 31, 63, 65, 100, 576, 1000, 2047}) {
      const BlockLayer layer({{BlockType::kInt8, 97}}, inputs, true, inputs);
      for (const size_t rows : {1, 2, 5, 7, 8, 16, 33, 128}) {
        ExpectSameBits(*dense, layer, rows, rows % 2);
        ASSERT_FALSE(HasFatalFailure());
      }
      const auto packed = layer.PackBlocks(*dense);
      ASSERT_TRUE(packed.ok()) << packed.status();
      Activations expected(2, inputs, DType::kF32);
      const uint32_t ids[] = {96, 5};
      dense->Embed(layer.widened(), DType::kBF16, inputs, ids, expected.floats());
      ExpectLookUps(*dense, **packed, ids, expected);
    }
  }
}

// A row's bits depend on that row alone, also where another loop takes more rows.
TEST_F(BlocksTest, RowsOfInt8HaveTheSameBitsInAnyBatch) {
  constexpr size_t kRows = 130;
  const BlockLayer layer({{BlockType::kInt8, 130}}, 200, true, 21);
  for (const auto& [loop, threads] : {std::pair<DenseLoop, size_t>{DenseLoop::kFastest, 1},
                                      {DenseLoop::kFastest, 3},
                                      {DenseLoop::kEmulatedTiles, 3}}) {
    const std::unique_ptr<Dense> dense = MakeDense(DType::kBF16, loop, threads);
    const auto packed = layer.PackBlocks(*dense);
    ASSERT_TRUE(packed.ok()) << packed.status();
    Activations in = Activations::Random(kRows, 200, DType::kBF16, 3);
    Activations whole(kRows, 130, DType::kF32);
    dense->Linear(**packed, in.view(), 0, whole.floats());
    for (const size_t count : {1, 3, 6, 7, 12, 13, 64, 128}) {
      Activations part(count, 130, DType::kF32);
      dense->Linear(**packed, in.view().Rows(kRows - count, count), 0, part.floats());
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < 130; ++j) {
          ASSERT_TRUE(SameBits(part.Get(i, j), whole.Get(kRows - count + i, j)))
              << count << " rows";
        }
      }
    }
  }
}

TEST_F(BlocksTest, Int8StandsNextToOtherTypes) {
  const BlockLayer layer({{BlockType::kQ80, 16}, {BlockType::kInt8, 36}}, 96, false, 10);
  for (const size_t rows : {1, 5, 9}) {
    ExpectSameBits(*dense_, layer, rows, 0);
  }
}

TEST_F(BlocksTest, TypesThatChangeInsideAStripAreUnimplemented) {
  const BlockLayer layer({{BlockType::kQ40, 40}, {BlockType::kQ80, 40}}, 64, false, 10);
  const absl::Status status = layer.PackBlocks(*dense_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("Q4_0 and Q8_0"), std::string::npos) << status;
}

TEST_F(BlocksTest, AScaleThatIsNotFiniteIsUnimplemented) {
  struct Place {
    BlockType type;
    size_t high_byte;
  };
  for (const Place& place : {Place{BlockType::kQ80, 1}, Place{BlockType::kQ2K, 81},
                             Place{BlockType::kQ2K, 83}, Place{BlockType::kQ3K, 109}}) {
    const BlockTypeInfo& info = InfoOf(place.type);
    std::vector<uint8_t> row(info.bytes);
    row[place.high_byte] = 0x7c;  // Infinity.
    const uint8_t* const pointer = row.data();
    const BlockRows rows = {.type = place.type, .rows = {&pointer, 1}};
    const absl::Status status = dense_->PackBlocks({&rows, 1}, info.elements, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << info.name;
    EXPECT_NE(status.message().find("not finite"), std::string::npos) << status;
    EXPECT_FALSE(dense_->EmbedsBlocks(
        {.type = place.type, .data = row.data(), .rows = 1, .width = info.elements}))
        << info.name;
  }
}

TEST_F(BlocksTest, F32IsUnimplemented) {
  const std::unique_ptr<Dense> f32 = MakeDense(DType::kF32, true, 1);
  const BlockLayer layer({{BlockType::kQ40, 4}}, 32, false, 11);
  EXPECT_EQ(layer.PackBlocks(*f32).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(BlockWidenTest, HasTheSameBitsOnEveryInstructionSet) {
  for (const BlockTypeInfo& info : BlockTypes()) {
    const BlockLayer layer({{info.type, 100}}, 2 * info.elements, true, 12);
    OnEachTarget(HWY_SSE4 | kFmaTargets, [&](int64_t) {
      const std::unique_ptr<Dense> dense = MakeDense(DType::kBF16, true, 1);
      ExpectSameBits(*dense, layer, 5, 0);
    });
    ASSERT_FALSE(HasFatalFailure()) << info.name;
  }
}

TEST(BlockTypeTest, AreThoseOfFiles) {
  for (const BlockTypeInfo& info : FileBlockTypes()) {
    const model::GgufTensorType* type = model::FindGgufTensorType(info.name);
    ASSERT_NE(type, nullptr) << info.name;
    EXPECT_EQ(info.elements, type->block_elements) << info.name;
    EXPECT_EQ(info.bytes, type->block_bytes) << info.name;
    EXPECT_EQ(FindBlockType(info.name), info.type);
    EXPECT_EQ(InfoOf(info.type).name, info.name);
  }
  EXPECT_EQ(FindBlockType("F16"), std::nullopt);
  EXPECT_EQ(FindBlockType("int8"), std::nullopt);
  EXPECT_EQ(InfoOf(BlockType::kInt8).name, "int8");
}

}  // namespace
}  // namespace lamina::kernels
