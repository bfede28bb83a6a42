// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/pre_tokenizer_catalog.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/string_distance.h"

namespace lamina::model {
namespace {

enum class Recipe : uint8_t {
  kGpt2,           // The pattern of GPT-2.
  kDigitsGpt2,     // Every digit alone, then the pattern of GPT-2.
  kPattern,        // One pattern of its own.
  kFalcon,         // Punctuation, GPT-2, numbers, groups of three digits.
  kDeepseekCoder,  // Five splits.
  kDefault,        // What GGUF writers mean when they know nothing better.
};

struct CatalogEntry {
  absl::string_view name;
  Recipe recipe;
  absl::string_view pattern = "";
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

// Llama-3 and Qwen2 differ in how many digits make a piece.
constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen3.5 counts marks as parts of words.
constexpr absl::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Mistral's tekken, of Mistral-Nemo and later: words end where capitals begin.
constexpr absl::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// OpenAI's o200k: as tekken, with contractions as parts of words and up to three digits.
constexpr absl::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr CatalogEntry kCatalog[] = {
    {.name = "command-r", .recipe = Recipe::kDigitsGpt2, .nfc = true},
    // Phi-4 and OLMo 2 too.
    {.name = "dbrx", .recipe = Recipe::kPattern, .pattern = kLlama3Pattern},
    {.name = "deepseek-coder", .recipe = Recipe::kDeepseekCoder},
    // Models distilled into Qwen2.5, with its tokenizer.
    {.name = "deepseek-r1-qwen", .recipe = Recipe::kPattern, .pattern = kQwen2Pattern, .nfc = true},
    {.name = "default", .recipe = Recipe::kDefault},
    {.name = "falcon", .recipe = Recipe::kFalcon},
    {.name = "falcon3",
     .recipe = Recipe::kPattern,
     .pattern = kLlama3Pattern,
     .ignore_merges = true,
     .add_bos = true},
    {.name = "gpt-2", .recipe = Recipe::kGpt2},
    // gpt-oss and Phi-4-mini.
    {.name = "gpt-4o", .recipe = Recipe::kPattern, .pattern = kO200kPattern},
    {.name = "gpt-neox", .recipe = Recipe::kGpt2, .nfc = true},
    {.name = "llama-bpe",
     .recipe = Recipe::kPattern,
     .pattern = kLlama3Pattern,
     .ignore_merges = true,
     .add_bos = true},
    {.name = "llama-v3",
     .recipe = Recipe::kPattern,
     .pattern = kLlama3Pattern,
     .ignore_merges = true,
     .add_bos = true},
    {.name = "llama3",
     .recipe = Recipe::kPattern,
     .pattern = kLlama3Pattern,
     .ignore_merges = true,
     .add_bos = true},
    {.name = "mpt", .recipe = Recipe::kGpt2, .nfc = true},
    // OLMo has the tokenizer of GPT-NeoX; the files of Pythia bear its name.
    {.name = "olmo", .recipe = Recipe::kGpt2, .nfc = true},
    {.name = "phi-2", .recipe = Recipe::kGpt2},
    {.name = "qwen2", .recipe = Recipe::kPattern, .pattern = kQwen2Pattern, .nfc = true},
    {.name = "qwen35", .recipe = Recipe::kPattern, .pattern = kQwen35Pattern, .nfc = true},
    {.name = "refact", .recipe = Recipe::kDigitsGpt2},
    {.name = "smaug-bpe", .recipe = Recipe::kPattern, .pattern = kLlama3Pattern},
    {.name = "smollm", .recipe = Recipe::kDigitsGpt2},
    {.name = "starcoder", .recipe = Recipe::kDigitsGpt2},
    {.name = "tekken",
     .recipe = Recipe::kPattern,
     .pattern = kTekkenPattern,
     .ignore_merges = true,
     .add_bos = true},
};

absl::Status AddSplit(absl::string_view pattern, std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(SplitStep split, MakeSplit(pattern, SplitBehavior::kIsolated));
  steps->emplace_back(std::move(split));
  return absl::OkStatus();
}

absl::Status AddGpt2(std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(SplitStep split, MakeGpt2Split());
  steps->emplace_back(std::move(split));
  steps->emplace_back(ByteLevelStep{});
  return absl::OkStatus();
}

absl::Status AddDigits(bool individual, std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(SplitStep split, MakeDigitsSplit(individual));
  steps->emplace_back(std::move(split));
  return absl::OkStatus();
}

absl::Status AddFalcon(std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(SplitStep punctuation, MakePunctuationSplit(SplitBehavior::kContiguous));
  steps->emplace_back(std::move(punctuation));
  LAMINA_RETURN_IF_ERROR(AddGpt2(steps));
  LAMINA_RETURN_IF_ERROR(AddDigits(/*individual=*/false, steps));
  return AddSplit("[0-9][0-9][0-9]", steps);
}

absl::Status AddDeepseekCoder(std::vector<PreTokenizerStep>* steps) {
  for (const absl::string_view pattern :
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
        R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)"}) {
    LAMINA_RETURN_IF_ERROR(AddSplit(pattern, steps));
  }
  LAMINA_RETURN_IF_ERROR(AddDigits(/*individual=*/true, steps));
  steps->emplace_back(ByteLevelStep{});
  return absl::OkStatus();
}

absl::Status AddDefault(std::vector<PreTokenizerStep>* steps) {
  LAMINA_RETURN_IF_ERROR(AddSplit(R"([\p{P}$+<=>^~|]+)", steps));
  LAMINA_ASSIGN_OR_RETURN(SplitStep gpt2, MakeGpt2Split());
  steps->emplace_back(std::move(gpt2));
  LAMINA_RETURN_IF_ERROR(AddSplit(R"(\p{N}+)", steps));
  LAMINA_RETURN_IF_ERROR(AddSplit("[0-9][0-9][0-9]", steps));
  steps->emplace_back(ByteLevelStep{});
  return absl::OkStatus();
}

absl::Status AddSteps(const CatalogEntry& entry, std::vector<PreTokenizerStep>* steps) {
  switch (entry.recipe) {
    case Recipe::kGpt2:
      return AddGpt2(steps);
    case Recipe::kDigitsGpt2:
      LAMINA_RETURN_IF_ERROR(AddDigits(/*individual=*/true, steps));
      return AddGpt2(steps);
    case Recipe::kPattern:
      LAMINA_RETURN_IF_ERROR(AddSplit(entry.pattern, steps));
      steps->emplace_back(ByteLevelStep{});
      return absl::OkStatus();
    case Recipe::kFalcon:
      return AddFalcon(steps);
    case Recipe::kDeepseekCoder:
      return AddDeepseekCoder(steps);
    case Recipe::kDefault:
      return AddDefault(steps);
  }
  return absl::InternalError("a pre-tokenizer recipe without steps");
}

}  // namespace

absl::StatusOr<NamedPreTokenizer> MakeNamedPreTokenizer(absl::string_view name) {
  for (const CatalogEntry& entry : kCatalog) {
    if (entry.name != name) {
      continue;
    }
    NamedPreTokenizer out;
    std::vector<PreTokenizerStep> steps;
    LAMINA_RETURN_IF_ERROR(AddSteps(entry, &steps));
    out.pre_tokenizer = PreTokenizer(std::move(steps));
    if (entry.nfc) {
      std::vector<NormalizerStep> nfc;
      nfc.emplace_back(UnicodeForm::kNfc);
      out.normalizer = Normalizer(std::move(nfc));
    }
    out.ignore_merges = entry.ignore_merges;
    out.add_bos = entry.add_bos;
    return out;
  }
  const std::vector<std::string> known = KnownPreTokenizers();
  const std::string nearest = NearestName(name, known);
  return absl::UnimplementedError(
      absl::StrCat("unknown pre-tokenizer \"", name, "\" (tokenizer.ggml.pre)",
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                   "; known ones: ", absl::StrJoin(known, ", ")));
}

std::vector<std::string> KnownPreTokenizers() {
  std::vector<std::string> out;
  for (const CatalogEntry& entry : kCatalog) {
    out.emplace_back(entry.name);
  }
  return out;
}

}  // namespace lamina::model
