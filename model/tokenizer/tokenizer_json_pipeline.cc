// SPDX-License-Identifier: Apache-2.0
//
// The parts of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor, decoder.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer/regex_dialect.h"
#include "model/tokenizer/text_growth.h"
#include "model/tokenizer/tokenizer_json_internal.h"

namespace lamina::model {
namespace {

absl::Status UnknownType(absl::string_view part, absl::string_view type, absl::string_view known) {
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.json has a ", part, " of type \"", type, "\"; known ones: ", known));
}

// The most bytes of the mark of a Metaspace, which is one character.
constexpr size_t kMarkBytesMax = 16;
// Tokens that a post_processor may put around a text, on each side.
constexpr size_t kSurroundingTokensMax = 1024;

// Before step `steps` + 1 is added.
absl::Status CheckRoom(absl::string_view part, size_t steps) {
  if (steps >= kPipelineStepsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json has more than ", kPipelineStepsMax, " steps in its ", part,
                     "; no known tokenizer has: fetch the file again"));
  }
  return absl::OkStatus();
}

// {"String": "x"} or {"Regex": "x"}, as a pattern.
absl::StatusOr<std::string> ParsePattern(const Json& step) {
  LAMINA_ASSIGN_OR_RETURN(const Json* pattern, GetObject(step, "pattern"));
  if (Member(*pattern, "Regex") != nullptr) {
    return GetString(*pattern, "Regex");
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, GetString(*pattern, "String"));
  return QuotePattern(text);
}

absl::Status AddNormalizer(const Json& json, std::vector<NormalizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(const std::string type, GetString(json, "type"));
  LAMINA_RETURN_IF_ERROR(CheckRoom("normalizer", steps->size()));
  if (type == "Sequence") {
    LAMINA_ASSIGN_OR_RETURN(const Json* parts, GetArray(json, "normalizers"));
    for (const Json& part : *parts) {
      LAMINA_RETURN_IF_ERROR(AddNormalizer(part, steps));
    }
  } else if (type == "NFC") {
    steps->emplace_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps->emplace_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps->emplace_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps->emplace_back(UnicodeForm::kNfkd);
  } else if (type == "Prepend") {
    LAMINA_ASSIGN_OR_RETURN(std::string prefix, GetString(json, "prepend"));
    steps->emplace_back(PrependStep{std::move(prefix)});
  } else if (type == "Replace") {
    LAMINA_ASSIGN_OR_RETURN(const std::string pattern, ParsePattern(json));
    LAMINA_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(pattern));
    LAMINA_ASSIGN_OR_RETURN(std::string content, GetString(json, "content"));
    LAMINA_ASSIGN_OR_RETURN(const Json* plain, GetObject(json, "pattern"));
    const bool literal = Member(*plain, "Regex") == nullptr;
    const size_t literal_bytes = literal ? GetString(*plain, "String").value_or("").size() : 0;
    steps->emplace_back(ReplaceStep{std::move(regex), std::move(content), literal_bytes});
  } else {
    return UnknownType("normalizer", type, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
  }
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ParseBehavior(const Json& json) {
  LAMINA_ASSIGN_OR_RETURN(const std::string name, GetString(json, "behavior"));
  constexpr std::pair<absl::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  };
  for (const auto& [known, behavior] : kNames) {
    if (known == name) {
      return behavior;
    }
  }
  return UnknownType("split behavior", name,
                     "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Older files say add_prefix_space where newer ones say prepend_scheme.
absl::StatusOr<MetaspaceStep> ParseMetaspace(const Json& json) {
  MetaspaceStep step;
  LAMINA_ASSIGN_OR_RETURN(step.mark, GetString(json, "replacement"));
  LAMINA_ASSIGN_OR_RETURN(step.split, GetBool(json, "split", true));
  LAMINA_ASSIGN_OR_RETURN(const bool prefix, GetBool(json, "add_prefix_space", true));
  step.prepend = prefix ? MetaspaceStep::Prepend::kAlways : MetaspaceStep::Prepend::kNever;
  if (Member(json, "prepend_scheme") != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(const std::string scheme, GetString(json, "prepend_scheme"));
    if (scheme == "always") {
      step.prepend = MetaspaceStep::Prepend::kAlways;
    } else if (scheme == "first") {
      step.prepend = MetaspaceStep::Prepend::kFirst;
    } else if (scheme == "never") {
      step.prepend = MetaspaceStep::Prepend::kNever;
    } else {
      return UnknownType("prepend_scheme", scheme, "always, first, never");
    }
  }
  if (step.mark.empty() || step.mark.size() > kMarkBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json has a Metaspace with a replacement of ", step.mark.size(),
                     " bytes; one character, 1 to ", kMarkBytesMax, " bytes, expected"));
  }
  return step;
}

absl::Status AddByteLevel(const Json& json, std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(const bool prefix, GetBool(json, "add_prefix_space", true));
  LAMINA_ASSIGN_OR_RETURN(const bool use_regex, GetBool(json, "use_regex", true));
  if (prefix) {
    steps->emplace_back(PrefixSpaceStep{});
  }
  if (use_regex) {
    LAMINA_ASSIGN_OR_RETURN(SplitStep split, MakeGpt2Split());
    steps->emplace_back(std::move(split));
  }
  steps->emplace_back(ByteLevelStep{});
  return absl::OkStatus();
}

absl::StatusOr<SplitStep> ParseSplit(const Json& json, const std::string& type) {
  if (type == "Split") {
    LAMINA_ASSIGN_OR_RETURN(const std::string pattern, ParsePattern(json));
    LAMINA_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(json));
    LAMINA_ASSIGN_OR_RETURN(const bool invert, GetBool(json, "invert", false));
    return MakeSplit(pattern, behavior, invert);
  }
  if (type == "Digits") {
    LAMINA_ASSIGN_OR_RETURN(const bool individual, GetBool(json, "individual_digits", false));
    return MakeDigitsSplit(individual);
  }
  if (type == "Punctuation") {
    if (Member(json, "behavior") == nullptr) {
      return MakePunctuationSplit(SplitBehavior::kIsolated);
    }
    LAMINA_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(json));
    return MakePunctuationSplit(behavior);
  }
  if (type == "Whitespace") {
    return MakeSplit(R"(\w+|[^\w\s]+)", SplitBehavior::kRemoved, /*invert=*/true);
  }
  if (type == "WhitespaceSplit") {
    return MakeSplit(R"(\s)", SplitBehavior::kRemoved);
  }
  return UnknownType("pre_tokenizer", type,
                     "ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace, "
                     "WhitespaceSplit");
}

absl::Status AddPreTokenizer(const Json& json, std::vector<PreTokenizerStep>* steps) {
  LAMINA_ASSIGN_OR_RETURN(const std::string type, GetString(json, "type"));
  LAMINA_RETURN_IF_ERROR(CheckRoom("pre_tokenizer", steps->size()));
  if (type == "Sequence") {
    LAMINA_ASSIGN_OR_RETURN(const Json* parts, GetArray(json, "pretokenizers"));
    for (const Json& part : *parts) {
      LAMINA_RETURN_IF_ERROR(AddPreTokenizer(part, steps));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {
    return AddByteLevel(json, steps);
  }
  if (type == "Metaspace") {
    LAMINA_ASSIGN_OR_RETURN(MetaspaceStep step, ParseMetaspace(json));
    steps->emplace_back(std::move(step));
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(SplitStep step, ParseSplit(json, type));
  steps->emplace_back(std::move(step));
  return absl::OkStatus();
}

absl::Status AddDecoder(const Json& json, TokenDecoding* out) {
  LAMINA_ASSIGN_OR_RETURN(const std::string type, GetString(json, "type"));
  LAMINA_RETURN_IF_ERROR(CheckRoom("decoder", out->replacements.size()));
  if (type == "Sequence") {
    LAMINA_ASSIGN_OR_RETURN(const Json* parts, GetArray(json, "decoders"));
    for (const Json& part : *parts) {
      LAMINA_RETURN_IF_ERROR(AddDecoder(part, out));
    }
  } else if (type == "ByteLevel") {
    out->byte_level = true;
  } else if (type == "ByteFallback") {
    out->byte_fallback = true;
  } else if (type == "Replace") {
    LAMINA_ASSIGN_OR_RETURN(const Json* pattern, GetObject(json, "pattern"));
    LAMINA_ASSIGN_OR_RETURN(std::string from, GetString(*pattern, "String"));
    LAMINA_ASSIGN_OR_RETURN(std::string to, GetString(json, "content"));
    out->replacements.emplace_back(std::move(from), std::move(to));
  } else if (type == "Metaspace") {
    LAMINA_ASSIGN_OR_RETURN(const MetaspaceStep step, ParseMetaspace(json));
    out->replacements.emplace_back(step.mark, " ");
    out->strip_first_space = step.prepend != MetaspaceStep::Prepend::kNever;
  } else if (type == "Strip") {
    LAMINA_ASSIGN_OR_RETURN(const std::string content, GetString(json, "content"));
    LAMINA_ASSIGN_OR_RETURN(const TokenId start, GetTokenId(json, "start"));
    LAMINA_ASSIGN_OR_RETURN(const TokenId stop, GetTokenId(json, "stop"));
    if (content != " " || start > 1 || stop != 0) {
      return absl::UnimplementedError(
          "tokenizer.json has a decoder that strips other than one space at the start");
    }
    out->strip_first_space = start == 1;
  } else if (type != "Fuse") {
    return UnknownType("decoder", type,
                       "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
  }
  return absl::OkStatus();
}

// Appends the id of a token, named so in the file, to what stands on one side of a text.
absl::Status Surround(const Json& id, absl::string_view name, std::vector<TokenId>& side,
                      const TokenizerSettings& settings) {
  LAMINA_ASSIGN_OR_RETURN(const TokenId token, AsTokenId(id, name));
  if (!settings.vocabulary.Contains(token)) {
    return absl::InvalidArgumentError(absl::StrCat("the post_processor's token \"", name,
                                                   "\" has id ", token, ", and the vocabulary ends",
                                                   " at ", settings.vocabulary.size()));
  }
  if (side.size() >= kSurroundingTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("the post_processor puts more than ",
                                                   kSurroundingTokensMax, " tokens around a text"));
  }
  side.push_back(token);
  return absl::OkStatus();
}

// {"SpecialToken": {"id": "<s>"}} pieces around {"Sequence": {"id": "A"}}.
absl::Status ParseTemplate(const Json& json, TokenizerSettings* settings) {
  LAMINA_ASSIGN_OR_RETURN(const Json* pieces, GetArray(json, "single"));
  bool after_text = false;
  for (const Json& piece : *pieces) {
    if (Member(piece, "Sequence") != nullptr) {
      after_text = true;
      continue;
    }
    LAMINA_ASSIGN_OR_RETURN(const Json* special, GetObject(piece, "SpecialToken"));
    LAMINA_ASSIGN_OR_RETURN(const std::string name, GetString(*special, "id"));
    LAMINA_ASSIGN_OR_RETURN(const Json* table, GetObject(json, "special_tokens"));
    LAMINA_ASSIGN_OR_RETURN(const Json* entry, GetObject(*table, name.c_str()));
    LAMINA_ASSIGN_OR_RETURN(const Json* ids, GetArray(*entry, "ids"));
    for (const Json& id : *ids) {
      LAMINA_RETURN_IF_ERROR(
          Surround(id, name, after_text ? settings->suffix : settings->prefix, *settings));
    }
  }
  return absl::OkStatus();
}

// "cls" and "sep" are [name, id].
absl::Status ParseClassAndSeparator(const Json& json, TokenizerSettings* settings) {
  for (const char* key : {"cls", "sep"}) {
    LAMINA_ASSIGN_OR_RETURN(const Json* pair, GetArray(json, key));
    if (pair->size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("the post_processor's \"", key, "\" is not a name and an id"));
    }
    LAMINA_RETURN_IF_ERROR(
        Surround((*pair)[1], key, key[0] == 'c' ? settings->prefix : settings->suffix, *settings));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> ParseNormalizer(const Json* json) {
  std::vector<NormalizerStep> steps;
  if (json != nullptr) {
    LAMINA_RETURN_IF_ERROR(AddNormalizer(*json, &steps));
  }
  return Normalizer(std::move(steps));
}

absl::StatusOr<PreTokenizer> ParsePreTokenizer(const Json* json) {
  std::vector<PreTokenizerStep> steps;
  if (json != nullptr) {
    LAMINA_RETURN_IF_ERROR(AddPreTokenizer(*json, &steps));
  }
  return PreTokenizer(std::move(steps));
}

absl::StatusOr<TokenDecoding> ParseDecoder(const Json* json) {
  TokenDecoding out;
  if (json != nullptr) {
    LAMINA_RETURN_IF_ERROR(AddDecoder(*json, &out));
  }
  return out;
}

absl::Status ParsePostProcessor(const Json* json, TokenizerSettings* settings) {
  if (json == nullptr) {
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string type, GetString(*json, "type"));
  if (type == "Sequence") {
    LAMINA_ASSIGN_OR_RETURN(const Json* parts, GetArray(*json, "processors"));
    for (const Json& part : *parts) {
      LAMINA_RETURN_IF_ERROR(ParsePostProcessor(&part, settings));
    }
    return absl::OkStatus();
  }
  if (type == "TemplateProcessing") {
    return ParseTemplate(*json, settings);
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    return ParseClassAndSeparator(*json, settings);
  }
  if (type == "ByteLevel") {
    return absl::OkStatus();  // Moves offsets only.
  }
  return UnknownType("post_processor", type,
                     "BertProcessing, ByteLevel, RobertaProcessing, Sequence, TemplateProcessing");
}

}  // namespace lamina::model
