// SPDX-License-Identifier: Apache-2.0
//
// Token ids equal those of Hugging Face's tokenizers and of SentencePiece on 2,200 strings per
// kind of tokenizer. Files and hashes: make_tokenizer_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

constexpr char kFolder[] = "tests/fidelity/tokenizers/";

std::vector<std::string> ReadLines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) {
    out.push_back(line);
  }
  return out;
}

// \xNN is a byte.
std::string Unescape(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\') {
      out.push_back(static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16)));
      i += 3;
    } else {
      out.push_back(line[i]);
    }
  }
  return out;
}

uint32_t Fnv1a(const std::vector<TokenId>& ids) {
  uint32_t value = 0x811C9DC5;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x01000193;
    }
  }
  return value;
}

// Compares with one line of a golden: "count hash [ids...]", or "tie".
void CheckLine(const Tokenizer& tokenizer, const std::string& text, const std::string& line) {
  const auto with = tokenizer.Encode(text, {});
  const auto without = tokenizer.Encode(text, {.add_special = false, .parse_special = false});
  ASSERT_TRUE(with.ok() && without.ok()) << with.status() << without.status();
  if (line == "tie") {
    return;
  }
  std::vector<std::string> fields = absl::StrSplit(line, ' ');
  ASSERT_GE(fields.size(), 2u);
  if (fields.size() > 2) {
    EXPECT_EQ(absl::StrJoin(*with, " "), absl::StrJoin(fields.begin() + 2, fields.end(), " "));
  }
  std::vector<TokenId> all = *with;
  all.push_back(-1);
  all.insert(all.end(), without->begin(), without->end());
  EXPECT_EQ(absl::StrCat(with->size(), " ", absl::Hex(Fnv1a(all), absl::kZeroPad8)),
            absl::StrCat(fields[0], " ", fields[1]));
}

// Strings with one of `pieces` are left out.
void CheckAll(const Tokenizer& tokenizer, const std::string& golden,
              const std::vector<std::string>& pieces = {}) {
  const std::vector<std::string> strings =
      ReadLines(test_support::SourcePath(absl::StrCat(kFolder, "corpus.txt")));
  const std::vector<std::string> lines =
      ReadLines(test_support::SourcePath(absl::StrCat(kFolder, golden, ".golden")));
  ASSERT_GE(strings.size(), 2000u);
  ASSERT_EQ(lines.size(), strings.size());
  for (size_t i = 0; i < lines.size() && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("string ", i, ": ", strings[i]));
    const bool is_left_out =
        std::any_of(pieces.begin(), pieces.end(),
                    [&](const std::string& piece) { return absl::StrContains(strings[i], piece); });
    if (is_left_out) {
      continue;
    }
    CheckLine(tokenizer, Unescape(strings[i]), lines[i]);
  }
}

class DirectoryGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DirectoryGoldenTest, GivesTheIdsOfTheReference) {
  const auto tokenizer = LoadTokenizer(test_support::SourcePath(absl::StrCat(kFolder, GetParam())));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  CheckAll(**tokenizer, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kinds, DirectoryGoldenTest,
                         ::testing::Values("gpt2", "gpt_neox", "llama3", "qwen2", "smollm",
                                           "falcon", "llama2", "metaspace", "spm_bpe",
                                           "spm_unigram"),
                         [](const auto& kind) { return std::string(kind.param); });

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// The vocabulary of tokenizers/`name`/tokenizer.json as a GGUF file that names `pre`.
std::string GgufOf(const std::string& name, const std::string& pre) {
  const nlohmann::json json =
      ReadJson(test_support::SourcePath(absl::StrCat(kFolder, name, "/tokenizer.json")));
  std::vector<std::string> tokens(json["model"]["vocab"].size());
  std::vector<int32_t> types(tokens.size(), 1);
  for (const auto& [token, id] : json["model"]["vocab"].items()) {
    tokens[id.get<size_t>()] = token;
  }
  for (const auto& added : json["added_tokens"]) {
    types.at(added["id"].get<size_t>()) = added["special"].get<bool>() ? 3 : 4;
  }
  std::vector<std::string> merges;
  for (const auto& merge : json["model"]["merges"]) {
    merges.push_back(absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>()));
  }
  test_support::GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", pre);
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddInts("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", merges);
  writer.AddUint("tokenizer.ggml.bos_token_id", 0);
  return writer.Finish();
}

void CheckGguf(const std::string& bytes, const std::string& golden,
               const std::vector<std::string>& left_out = {}) {
  const auto file = GgufFile::Parse(
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = LoadGgufTokenizer(**file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  CheckAll(**tokenizer, golden, left_out);
}

struct GgufKind {
  const char* golden;
  const char* pre;
};

class GgufGoldenTest : public ::testing::TestWithParam<GgufKind> {};

TEST_P(GgufGoldenTest, GivesTheIdsOfTheReference) {
  CheckGguf(GgufOf(GetParam().golden, GetParam().pre), GetParam().golden);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GgufGoldenTest,
                         ::testing::Values(GgufKind{"llama3", "llama-bpe"},
                                           GgufKind{"qwen2", "qwen2"}, GgufKind{"smollm", "smollm"},
                                           GgufKind{"falcon", "falcon"}),
                         [](const auto& kind) { return std::string(kind.param.golden); });

// User-defined pieces cut the text there as in llama.cpp, for which the library is no reference:
// gguf_tokenizer_test.cc has what they give.
TEST(GgufGoldenTest, SentencePieceVocabularyGivesTheIdsOfTheReference) {
  constexpr int32_t kUserDefined = 4;
  std::vector<std::string> user_defined;
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const auto& piece :
       ReadJson(test_support::SourcePath(absl::StrCat(kFolder, "spm_bpe/pieces.json")))) {
    tokens.push_back(piece[0]);
    scores.push_back(piece[1]);
    types.push_back(piece[2]);
    if (types.back() == kUserDefined) {
      user_defined.push_back(tokens.back());
    }
  }
  ASSERT_EQ(user_defined.size(), 2u);
  test_support::GgufWriter writer;
  writer.AddString("tokenizer.ggml.model", "llama");
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddFloats("tokenizer.ggml.scores", scores);
  writer.AddInts("tokenizer.ggml.token_type", types);
  writer.AddUint("tokenizer.ggml.bos_token_id", 1);
  writer.AddUint("tokenizer.ggml.eos_token_id", 2);

  CheckGguf(writer.Finish(), "spm_bpe", user_defined);
}

// The real model is fetched, not committed: LAMINA_TEST_MODEL, or where the quick start puts it.
TEST(RealModelGoldenTest, SmolLm2GivesTheIdsOfTheReference) {
  const char* named = std::getenv("LAMINA_TEST_MODEL");
  const std::string path =
      named != nullptr ? named : test_support::SourcePath("models/smollm2-135m-instruct.gguf");
  if (!std::ifstream(path).good()) {
    ASSERT_EQ(std::getenv("LAMINA_REQUIRE_MODEL"), nullptr)
        << path << " is missing; deploy/quickstart.sh fetches it, or set LAMINA_TEST_MODEL";
    GTEST_SKIP() << path << " is missing, and LAMINA_REQUIRE_MODEL is not set";
  }
  const auto tokenizer = LoadTokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocabulary_size(), 49152u);
  EXPECT_EQ((*tokenizer)->TokenName((*tokenizer)->eos()), "<|im_end|>");
  EXPECT_FALSE((*tokenizer)->chat_template().empty());
  CheckAll(**tokenizer, "smollm2_gguf");
}

}  // namespace
}  // namespace lamina::model
