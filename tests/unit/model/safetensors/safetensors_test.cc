// SPDX-License-Identifier: Apache-2.0
//
// SafetensorsSource: one file, many files, and the error for every kind of bad one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "model/safetensors/safetensors_source.h"
#include "tests/support/safetensors_writer.h"

namespace lamina::model {
namespace {

using test_support::SafetensorsWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileWithHeader(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

absl::StatusOr<std::unique_ptr<SafetensorsSource>> Parse(const std::string& file) {
  return SafetensorsSource::Parse({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

std::string SmallFile() {
  SafetensorsWriter writer;
  writer.AddTensorF32("a", {2, 2}, {1.0f, 2.0f, 3.0f, 4.0f});
  writer.AddTensorBF16("b", {3}, {0.5f, -1.5f, 256.0f});
  writer.AddTensor("half", {2}, "F16", absl::string_view("\x00\x3c\x00\xc0", 4));
  writer.AddTensor("mask", {2}, "BOOL", absl::string_view("\x01\x00", 2));
  return writer.Finish();
}

class SafetensorsDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = absl::StrCat(::testing::TempDir(), "/safetensors_",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(absl::StrCat(path_, "/", name), std::ios::binary) << content;
  }
  std::string path_;
};

TEST(SafetensorsTest, TensorsOfEachFloatTypeAreRead) {
  const std::string file = SmallFile();
  const auto source = Parse(file);
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<float> out(2);

  ASSERT_TRUE((*source)->Read("a", 2, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(3.0f, 4.0f));
  ASSERT_TRUE((*source)->Read("b", 1, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(-1.5f, 256.0f));
  ASSERT_TRUE((*source)->Read("half", 0, absl::MakeSpan(out)).ok());
  EXPECT_THAT(out, ElementsAre(1.0f, -2.0f));
  EXPECT_THAT((*source)->Find("a")->shape, ElementsAre(2, 2));
  EXPECT_EQ((*source)->Find("b")->type, "BF16");
  EXPECT_EQ((*source)->Find("none"), nullptr);
}

// Two blocks of one row: 2^1 and 2^-1 as scales; of a byte the low half comes first.
TEST(SafetensorsTest, Mxfp4InTwoTensorsIsReadAsOne) {
  SafetensorsWriter writer;
  std::string blocks(32, '\0');
  blocks[0] = '\x21';   // 0.5, 1
  blocks[1] = '\x7f';   // -6, 6
  blocks[15] = '\xa0';  // 0, -1
  blocks[16] = '\x53';  // 1.5, 3
  writer.AddTensor("w_blocks", {1, 2, 16}, "U8", blocks);
  writer.AddTensor("w_scales", {1, 2}, "U8", absl::string_view("\x80\x7e", 2));
  writer.AddTensor("alone_blocks", {1, 2, 16}, "U8", blocks);
  const std::string file = writer.Finish();
  const auto source = Parse(file);
  ASSERT_TRUE(source.ok()) << source.status();

  const TensorInfo* info = (*source)->Find("w");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->type, "MXFP4");
  EXPECT_THAT(info->shape, ElementsAre(1, 64));
  std::vector<float> values(64);
  ASSERT_TRUE((*source)->Read("w", 0, absl::MakeSpan(values)).ok());
  EXPECT_THAT(std::vector<float>(values.begin(), values.begin() + 5),
              ElementsAre(1.0f, 2.0f, -12.0f, 12.0f, 0.0f));
  EXPECT_EQ(values[31], -2.0f);
  EXPECT_EQ(values[32], 0.75f);
  EXPECT_EQ(values[33], 1.5f);
  std::vector<float> two(2);
  ASSERT_TRUE((*source)->Read("w", 32, absl::MakeSpan(two)).ok());
  EXPECT_THAT(two, ElementsAre(0.75f, 1.5f));
  EXPECT_EQ((*source)->Find("alone"), nullptr) << "without its scales it is bytes";
}

TEST(SafetensorsTest, ReadRefusesWhatItCannotRead) {
  const std::string file = SmallFile();
  const auto source = Parse(file);
  ASSERT_TRUE(source.ok());
  std::vector<float> out(2);

  EXPECT_EQ((*source)->Read("none", 0, absl::MakeSpan(out)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*source)->Read("a", 3, absl::MakeSpan(out)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*source)->Read("mask", 0, absl::MakeSpan(out)).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsTest, EveryTruncationIsDataLoss) {
  const std::string file = SmallFile();
  for (size_t size = 0; size < file.size(); ++size) {
    const absl::Status status = Parse(file.substr(0, size)).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("fetch the file again"));
  }
  EXPECT_EQ(Parse(file + "x").status().code(), absl::StatusCode::kDataLoss) << "a byte too many";
}

TEST(SafetensorsTest, InconsistentHeadersAreDataLoss) {
  const std::string data(16, '\0');
  const auto code = [&](const std::string& header) {
    return Parse(FileWithHeader(header, data)).status().code();
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})"),
            absl::StatusCode::kOk);
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})"),
            absl::StatusCode::kDataLoss)
      << "overlap";
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})"),
            absl::StatusCode::kDataLoss)
      << "gap";
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[8,17]}})"),
            absl::StatusCode::kDataLoss)
      << "behind the end";
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[16,8]}})"),
            absl::StatusCode::kDataLoss)
      << "backwards";
  EXPECT_EQ(code("{" + a + R"(,"b":{"dtype":"F32","shape":[-2],"data_offsets":[8,16]}})"),
            absl::StatusCode::kDataLoss)
      << "a negative size";
  EXPECT_EQ(code(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
                 R"("data_offsets":[0,16]}})"),
            absl::StatusCode::kDataLoss)
      << "a product over 64 bits";
  EXPECT_EQ(code("[1]"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(R"({"a":1})"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(R"({"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}})"),
            absl::StatusCode::kUnimplemented);
}

TEST(SafetensorsTest, OnlyWhatDescribesATensorIsRead) {
  const auto parse = [](const std::string& header) {
    return Parse(FileWithHeader(header, std::string(8, '\0'))).status();
  };
  EXPECT_TRUE(
      parse(R"({"__metadata__":{"x":"y","shape":[[1]]},"a":{"new":{"shape":[9,{"dtype":1}]},)"
            R"("dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,8],"more":null}})")
          .ok());
  EXPECT_TRUE(
      parse(R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,2],"data_offsets":[0,8]}})").ok());
  for (const std::string tensor :
       {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":{"shape":[2]},"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2],"shape":{"x":2},"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2,"x"],"data_offsets":[0,8]})",
        R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})",
        R"({"dtype":["F32"],"shape":[2],"data_offsets":[0,8]})", "[[2]]", "null", "\"F32\""}) {
    const absl::Status status = parse(absl::StrCat("{\"a\":", tensor, "}"));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tensor;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor \"a\" is not described"));
  }
  EXPECT_EQ(parse("1").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(parse("").code(), absl::StatusCode::kDataLoss);
}

// Bytes that this process holds beyond those that the test itself does.
size_t ResidentBytesMax() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

TEST(SafetensorsTest, AHeaderOfEmptyListsTakesNoMemory) {
  std::string header = "{\"__metadata__\":[[]";
  for (int i = 0; i < 8'000'000; ++i) {
    header += ",[]";
  }
  header += "]}";
  const std::string file = FileWithHeader(header, "");
  const size_t before = ResidentBytesMax();

  const auto parsed = Parse(file);

  EXPECT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_LT(ResidentBytesMax() - before, size_t{64} << 20) << "a document of it takes 250 MB";
}

TEST(SafetensorsTest, ATensorThatIsNamedTwiceIsDataLoss) {
  const std::string empty = R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(Parse(FileWithHeader(absl::StrCat("{", empty, ",", empty, "}"), "")).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsDirectory, AnIndexThatNestsWithoutEndIsRefused) {
  Write("model.safetensors", SmallFile());
  Write("model.safetensors.index.json",
        absl::StrCat(R"({"weight_map":)", std::string(1'000'000, '['), "}"));

  const absl::Status status = SafetensorsSource::OpenDirectory(path_).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 64"));
}

TEST_F(SafetensorsDirectory, OneFileOrManyThroughTheIndex) {
  EXPECT_EQ(SafetensorsSource::OpenDirectory(path_).status().code(), absl::StatusCode::kNotFound);
  Write("model.safetensors", SmallFile());
  ASSERT_TRUE(SafetensorsSource::OpenDirectory(path_).ok());

  SafetensorsWriter other;
  other.AddTensorF32("z", {1}, {9.0f});
  Write("other.safetensors", other.Finish());
  Write("model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"a":"model.safetensors","z":"other.safetensors"}})");
  const auto source = SafetensorsSource::OpenDirectory(path_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->tensors().size(), 5u);
  float z = 0;
  ASSERT_TRUE((*source)->Read("z", 0, absl::MakeSpan(&z, 1)).ok());
  EXPECT_EQ(z, 9.0f);
}

TEST_F(SafetensorsDirectory, IndexErrorsNameTheFileOrTheTensor) {
  Write("one.safetensors", SmallFile());
  const auto status = [&](const std::string& map) {
    Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\":", map, "}"));
    return SafetensorsSource::OpenDirectory(path_).status();
  };
  EXPECT_TRUE(status(R"({"a":"one.safetensors"})").ok());
  EXPECT_EQ(status(R"({"a":"two.safetensors"})").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status(R"({"a":"two.safetensors"})").message()),
              HasSubstr("two.safetensors"));
  EXPECT_EQ(status(R"({"q":"one.safetensors"})").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status(R"({"a":"../one.safetensors"})").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status(R"({"a":7})").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status("[]").code(), absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsDirectory, ATensorInTwoFilesIsDataLoss) {
  Write("one.safetensors", SmallFile());
  Write("two.safetensors", SmallFile());
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(SafetensorsSource::OpenDirectory(path_).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lamina::model
