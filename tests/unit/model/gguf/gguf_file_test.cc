// SPDX-License-Identifier: Apache-2.0
//
// GgufFile: what a good file gives, and the error for every kind of bad one.

#include "model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/support/gguf_writer.h"

namespace lamina::model {
namespace {

using test_support::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Span<const uint8_t> Bytes(const std::string& file) {
  return {reinterpret_cast<const uint8_t*>(file.data()), file.size()};
}

absl::Status ParseStatus(const std::string& file) { return GgufFile::Parse(Bytes(file)).status(); }

GgufWriter SmallFile(uint32_t version = 3) {
  GgufWriter writer(version);
  writer.AddUint("a.count", 7);
  writer.AddFloat("a.ratio", 0.5f);
  writer.AddBool("a.flag", true);
  writer.AddString("a.name", "gr\xc3\xbc\xc3\x9f");
  writer.AddStrings("a.words", {"one", "", "three"});
  writer.AddInts("a.ids", {-1, 2});
  writer.AddFloats("a.weights", {0.25f, -8.0f});
  std::vector<float> values(6);
  std::iota(values.begin(), values.end(), 1.0f);
  writer.AddTensorF32("plain", {2, 3}, values);
  std::vector<float> ramp(64);
  std::iota(ramp.begin(), ramp.end(), -32.0f);
  writer.AddTensorQ8_0("packed", {2, 32}, ramp);
  return writer;
}

class GgufVersions : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GgufVersions, MetadataComesBackTyped) {
  const std::string bytes = SmallFile(GetParam()).Finish();
  const auto file = GgufFile::Parse(Bytes(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  const GgufFile& gguf = **file;

  EXPECT_EQ(*gguf.GetUint("a.count"), 7u);
  EXPECT_EQ(*gguf.GetFloat("a.ratio"), 0.5);
  EXPECT_TRUE(*gguf.GetBool("a.flag"));
  EXPECT_EQ(*gguf.GetString("a.name"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_THAT(*gguf.GetStrings("a.words"), ElementsAre("one", "", "three"));
  EXPECT_THAT(*gguf.GetInts("a.ids"), ElementsAre(-1, 2));
  EXPECT_THAT(*gguf.GetFloats("a.weights"), ElementsAre(0.25, -8.0));
  EXPECT_EQ(*gguf.GetFloat("a.count"), 7.0) << "a whole number is a number";
  EXPECT_FALSE(gguf.Has("a.missing"));
}

INSTANTIATE_TEST_SUITE_P(Versions, GgufVersions, ::testing::Values(2u, 3u));

TEST(GgufFileTest, LookUpsNameTheKeyThatIsMissingOrOfAnotherType) {
  const std::string bytes = SmallFile().Finish();
  const auto file = GgufFile::Parse(Bytes(bytes));
  ASSERT_TRUE(file.ok());

  EXPECT_EQ((*file)->GetUint("a.missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string((*file)->GetUint("a.missing").status().message()),
              HasSubstr("a.missing"));
  for (const absl::Status& status :
       {(*file)->GetUint("a.name").status(), (*file)->GetFloat("a.flag").status(),
        (*file)->GetBool("a.count").status(), (*file)->GetString("a.words").status(),
        (*file)->GetStrings("a.ids").status(), (*file)->GetInts("a.weights").status(),
        (*file)->GetFloats("a.ids").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(GgufFileTest, TensorsAreListedAndRead) {
  const std::string bytes = SmallFile().Finish();
  const auto file = GgufFile::Parse(Bytes(bytes));
  ASSERT_TRUE(file.ok());
  const TensorInfo* packed = (*file)->Find("packed");
  ASSERT_NE(packed, nullptr);
  EXPECT_EQ(packed->type, "Q8_0");
  EXPECT_THAT(packed->shape, ElementsAre(2, 32));
  EXPECT_EQ(packed->stored_bytes, 2u * 34u);

  std::vector<float> row(3);
  ASSERT_TRUE((*file)->Read("plain", 3, absl::MakeSpan(row)).ok());
  EXPECT_THAT(row, ElementsAre(4.0f, 5.0f, 6.0f));
  std::vector<float> part(5);
  ASSERT_TRUE((*file)->Read("packed", 32, absl::MakeSpan(part)).ok());
  EXPECT_NEAR(part[4], 4.0f, 0.15f);
}

TEST(GgufFileTest, ReadRefusesWhatIsOutsideOrInsideABlock) {
  const std::string bytes = SmallFile().Finish();
  const auto file = GgufFile::Parse(Bytes(bytes));
  ASSERT_TRUE(file.ok());
  std::vector<float> out(32);

  EXPECT_EQ((*file)->Read("none", 0, absl::MakeSpan(out)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*file)->Read("packed", 64, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*file)->Read("packed", UINT64_MAX, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*file)->Read("packed", 16, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GgufFileTest, EveryTruncationIsDataLossThatSaysWhatToDo) {
  const std::string bytes = SmallFile().Finish();
  const size_t last_tensor_end = bytes.size() - (32 - 68 % 32);  // What follows is padding.

  for (size_t size = 0; size < last_tensor_end; ++size) {
    const absl::Status status = ParseStatus(bytes.substr(0, size));
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("fetch the file again"));
  }
}

TEST(GgufFileTest, WrongMagicVersionAndByteOrder) {
  std::string bytes = SmallFile().Finish();
  bytes[0] = 'X';  // No model at all, rather than a damaged one.
  EXPECT_EQ(ParseStatus(bytes).code(), absl::StatusCode::kInvalidArgument);
  bytes = SmallFile().Finish();
  bytes[4] = 1;
  EXPECT_EQ(ParseStatus(bytes).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(ParseStatus(bytes).message()), HasSubstr("version 1"));
  bytes[4] = 0;
  bytes[7] = 3;
  EXPECT_THAT(std::string(ParseStatus(bytes).message()), HasSubstr("big-endian"));
}

TEST(GgufFileTest, UnknownTensorTypeIsNamed) {
  GgufWriter writer;
  writer.AddTensor("odd", {256}, 22, std::string(82, '\0'));
  const absl::Status status = ParseStatus(writer.Finish());

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("IQ2_S"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("odd"));
}

TEST(GgufFileTest, ImpossibleTensorsAreDataLoss) {
  const std::string data(64, '\0');
  const auto status = [&](absl::Span<const uint64_t> shape, uint32_t type) {
    GgufWriter writer;
    writer.AddTensor("t", shape, type, data);
    return ParseStatus(writer.Finish()).code();
  };
  EXPECT_EQ(status({4, 4}, 0), absl::StatusCode::kOk);
  EXPECT_EQ(status({4, 5}, 0), absl::StatusCode::kDataLoss) << "outside the file";
  EXPECT_EQ(status({4, 0}, 0), absl::StatusCode::kDataLoss) << "an empty dimension";
  EXPECT_EQ(status({uint64_t{1} << 40, uint64_t{1} << 40}, 0), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status({uint64_t{1} << 62}, 0), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status({33}, 8), absl::StatusCode::kDataLoss) << "part of a block";
  EXPECT_EQ(status({1, 1, 1, 1, 1}, 0), absl::StatusCode::kDataLoss) << "five dimensions";
  EXPECT_EQ(status({}, 0), absl::StatusCode::kDataLoss) << "no dimension";
}

TEST(GgufFileTest, TwiceTheSameNameIsDataLoss) {
  GgufWriter keys;
  keys.AddUint("k", 1);
  keys.AddUint("k", 2);
  EXPECT_EQ(ParseStatus(keys.Finish()).code(), absl::StatusCode::kDataLoss);
  GgufWriter tensors;
  tensors.AddTensorF32("t", {1}, {1.0f});
  tensors.AddTensorF32("t", {1}, {2.0f});
  EXPECT_EQ(ParseStatus(tensors.Finish()).code(), absl::StatusCode::kDataLoss);
}

TEST(GgufFileTest, OverlappingTensorsAreDataLoss) {
  GgufWriter writer;
  writer.AddTensorF32("a", {16}, std::vector<float>(16, 1.0f));
  writer.AddTensorF32("b", {16}, std::vector<float>(16, 1.0f));
  std::string bytes = writer.Finish();
  // The offset of "b" are the last eight bytes before the padding; it is 64.
  const size_t offset = bytes.find(std::string("\x40\0\0\0\0\0\0\0", 8));
  ASSERT_NE(offset, std::string::npos);
  bytes[offset] = 32;
  const absl::Status status = ParseStatus(bytes);

  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("overlap"));
}

TEST(GgufFileTest, BadValuesAreDataLoss) {
  const auto status = [](uint32_t type, const std::string& bytes) {
    GgufWriter writer;
    writer.AddRaw("k", type, bytes);
    return ParseStatus(writer.Finish()).code();
  };
  const auto array = [](char kind, uint64_t length) {
    std::string bytes = {kind, 0, 0, 0};
    bytes.append(reinterpret_cast<const char*>(&length), 8);
    return bytes + std::string(64, '\0');
  };
  EXPECT_EQ(status(13, "xxxx"), absl::StatusCode::kDataLoss) << "unknown type";
  EXPECT_EQ(status(7, "\x02"), absl::StatusCode::kDataLoss) << "neither true nor false";
  EXPECT_EQ(status(9, array(13, 1)), absl::StatusCode::kDataLoss) << "unknown element type";
  EXPECT_EQ(status(9, array(4, uint64_t{1} << 60)), absl::StatusCode::kDataLoss) << "too long";
  EXPECT_EQ(status(9, array(8, 1000)), absl::StatusCode::kDataLoss) << "too many strings";
  EXPECT_EQ(status(9, array(9, 1)), absl::StatusCode::kUnimplemented) << "array of arrays";
}

TEST(GgufFileTest, AlignmentMustBeAPowerOfTwo) {
  GgufWriter writer;
  writer.AddUint("general.alignment", 48);
  EXPECT_EQ(ParseStatus(writer.Finish()).code(), absl::StatusCode::kDataLoss);
}

TEST(GgufFileTest, OpenMapsAFileAndNamesTheOneThatIsMissing) {
  const std::string path = ::testing::TempDir() + "/gguf_file_test.gguf";
  std::ofstream(path, std::ios::binary) << SmallFile().Finish();
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<float> values(6);
  EXPECT_TRUE((*file)->Read("plain", 0, absl::MakeSpan(values)).ok());
  std::filesystem::remove(path);

  const absl::Status missing = GgufFile::Open(path).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("gguf_file_test.gguf"));
  EXPECT_EQ(GgufFile::Open(::testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

template <typename T>
std::string NumberBytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

// Part `number`, from 0, as llama.cpp's gguf-split writes it.
GgufWriter PartOf(uint16_t number, uint16_t parts = 3, int32_t tensors = 3) {
  GgufWriter writer;
  writer.AddRaw("split.no", 2, NumberBytes(number));
  writer.AddRaw("split.count", 2, NumberBytes(parts));
  writer.AddRaw("split.tensors.count", 5, NumberBytes(tensors));
  return writer;
}

class SplitGgufTest : public ::testing::Test {
 protected:
  // Three parts: all metadata, then "t1" with "t2", then "t3".
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    GgufWriter first = PartOf(0);
    first.AddString("a.name", "whole");
    Write(Name(1), first);
    GgufWriter second = PartOf(1);
    AddTensor("t1", 1.0f, second);
    AddTensor("t2", 2.0f, second);
    Write(Name(2), second);
    WriteThird(PartOf(2), "t3");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string Name(int part) { return absl::StrCat("m-0000", part, "-of-00003.gguf"); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  static void AddTensor(const std::string& name, float value, GgufWriter& writer) {
    writer.AddTensorF32(name, std::vector<uint64_t>{2}, std::vector<float>{value, -value});
  }
  void Write(const std::string& name, const GgufWriter& writer) const {
    std::ofstream(Path(name), std::ios::binary) << writer.Finish();
  }
  void WriteThird(GgufWriter writer, const std::string& tensor) const {
    AddTensor(tensor, 3.0f, writer);
    Write(Name(3), writer);
  }
  void ExpectError(const std::string& name, absl::StatusCode code, const std::string& part) const {
    const absl::Status status = GgufFile::Open(Path(name)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  const std::string folder_ = ::testing::TempDir() + "/split_gguf_test";
};

TEST_F(SplitGgufTest, TheFirstPartBringsTheOthers) {
  const auto file = GgufFile::Open(Path(Name(1)));
  ASSERT_TRUE(file.ok()) << file.status();

  EXPECT_EQ(*(*file)->GetString("a.name"), "whole");
  ASSERT_EQ((*file)->tensors().size(), 3u);
  for (size_t i = 1; i <= 3; ++i) {
    const std::string name = absl::StrCat("t", i);
    const auto value = static_cast<float>(i);
    EXPECT_EQ((*file)->tensors()[i - 1].name, name);
    ASSERT_NE((*file)->Find(name), nullptr);
    std::vector<float> values(2);
    ASSERT_TRUE((*file)->Read(name, 0, absl::MakeSpan(values)).ok());
    EXPECT_THAT(values, ElementsAre(value, -value));
    ASSERT_TRUE((*file)->Blocks(name).has_value());
  }
}

TEST_F(SplitGgufTest, AnotherPartNamesTheFirst) {
  ExpectError(Name(2), absl::StatusCode::kInvalidArgument,
              "is part 2 of 3 with 3 tensors in all: give the first, " + Path(Name(1)));
}

TEST_F(SplitGgufTest, AMissingPartIsNamed) {
  std::filesystem::remove(Path(Name(3)));

  ExpectError(Name(1), absl::StatusCode::kNotFound, Path(Name(3)) + " is missing");
}

TEST_F(SplitGgufTest, APartOfAnotherSplitIsRefused) {
  for (const GgufWriter& other : {PartOf(1), PartOf(2, 4), PartOf(2, 3, 9)}) {
    WriteThird(other, "t3");
    ExpectError(Name(1), absl::StatusCode::kDataLoss,
                "part 3 of 3 with 3 tensors in all was expected: it is of another split");
  }
  WriteThird(GgufWriter(), "t3");
  ExpectError(Name(1), absl::StatusCode::kNotFound, Name(3) + ": the file has no metadata");
}

TEST_F(SplitGgufTest, TensorsAreThereOnceAndAll) {
  WriteThird(PartOf(2), "t2");
  ExpectError(Name(1), absl::StatusCode::kDataLoss, "tensor \"t2\" is in two of its parts");
  Write(Name(3), PartOf(2));
  ExpectError(Name(1), absl::StatusCode::kDataLoss,
              "its 3 parts hold 2 tensors, and split.tensors.count is 3");
}

TEST_F(SplitGgufTest, APartOfAnotherNameIsRefused) {
  std::filesystem::rename(Path(Name(1)), Path("m.gguf"));
  ExpectError("m.gguf", absl::StatusCode::kInvalidArgument,
              "does not end with \"-00001-of-00003.gguf\"");
}

TEST_F(SplitGgufTest, AFileThatWasPutTogetherIsWhole) {
  for (const uint16_t parts : {uint16_t{0}, uint16_t{1}}) {
    GgufWriter writer = PartOf(0, parts, 1);
    AddTensor("t", 1.0f, writer);
    Write("m.gguf", writer);
    EXPECT_TRUE(GgufFile::Open(Path("m.gguf")).ok());
  }
}

// An array of `length` bytes, as AddRaw() takes it.
std::string ByteArray(uint64_t length) {
  const uint32_t type = 0;
  std::string out(reinterpret_cast<const char*>(&type), sizeof type);
  out.append(reinterpret_cast<const char*>(&length), sizeof length);
  return out.append(length, '\1');
}

// Each byte of an array becomes a number of eight.
TEST(GgufFileTest, MoreThanAnyModelHasIsRefusedBeforeItIsKept) {
  constexpr uint64_t kMost = uint64_t{1} << 24;
  GgufWriter most;
  most.AddRaw("a", 9, ByteArray(kMost));
  EXPECT_TRUE(ParseStatus(most.Finish()).ok());
  GgufWriter one;
  one.AddRaw("a", 9, ByteArray(kMost + 1));
  EXPECT_THAT(std::string(ParseStatus(one.Finish()).message()),
              HasSubstr("the elements of array \"a\" are 16777217; at most 16777216 are read"));
  GgufWriter two;
  two.AddRaw("a", 9, ByteArray(kMost / 2));
  two.AddRaw("b", 9, ByteArray(kMost / 2 + 1));
  EXPECT_THAT(std::string(ParseStatus(two.Finish()).message()),
              HasSubstr("the elements of all arrays are 16777217"));

  const auto with_number = [](size_t at, uint64_t number) {
    std::string file = SmallFile().Finish();
    std::memcpy(file.data() + at, &number, sizeof number);
    return std::string(ParseStatus(file).message());
  };
  EXPECT_THAT(with_number(8, uint64_t{1} << 21), HasSubstr("the tensors are 2097152"));
  EXPECT_THAT(with_number(16, uint64_t{1} << 17), HasSubstr("the pairs of metadata are 131072"));

  GgufWriter named;
  named.AddTensorF32(std::string(1025, 'n'), std::vector<uint64_t>{1}, std::vector<float>{1.0f});
  EXPECT_THAT(std::string(ParseStatus(named.Finish()).message()),
              HasSubstr("the bytes of a tensor's name are 1025; at most 1024"));
}

}  // namespace
}  // namespace lamina::model
