// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/text_growth.h"
#include "model/tokenizer/tokenizer_json_internal.h"

namespace lamina::model {
namespace {

// Written "left right" or ["left", "right"].
absl::StatusOr<std::pair<std::string, std::string>> ParseMerge(const Json& json) {
  if (json.is_string()) {
    const std::vector<std::string> parts = absl::StrSplit(json.get_ref<const std::string&>(), ' ');
    if (parts.size() == 2) {
      return std::pair(parts[0], parts[1]);
    }
  } else if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    return std::pair(json[0].get<std::string>(), json[1].get<std::string>());
  }
  return absl::InvalidArgumentError("tokenizer.json has a merge that is not a pair of strings");
}

absl::Status ParseVocabulary(const Json& model, BpeOptions* out) {
  LAMINA_ASSIGN_OR_RETURN(const Json* vocabulary, GetObject(model, "vocab"));
  out->vocabulary.reserve(vocabulary->size());
  for (const auto& [name, id] : vocabulary->items()) {
    LAMINA_ASSIGN_OR_RETURN(const TokenId value, AsTokenId(id, name));
    out->vocabulary.emplace(name, value);
  }
  return absl::OkStatus();
}

absl::Status RefuseWhatChangesIds(const Json& model) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* member = Member(model, key);
    const bool off = member == nullptr ||
                     (member->is_string() && member->get_ref<const std::string&>().empty()) ||
                     (member->is_number() && member->get<double>() == 0.0);
    if (!off) {
      return absl::UnimplementedError(
          absl::StrCat("tokenizer.json sets \"", key, "\" of its model, which is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeOptions> ParseModel(const Json& model) {
  const std::string type = GetString(model, "type").value_or("BPE");
  if (type != "BPE") {
    return absl::UnimplementedError(absl::StrCat("tokenizer.json has a model of type \"", type,
                                                 "\"; known ones: BPE (a SentencePiece unigram "
                                                 "model can be read from tokenizer.model)"));
  }
  BpeOptions out;
  LAMINA_RETURN_IF_ERROR(RefuseWhatChangesIds(model));
  LAMINA_RETURN_IF_ERROR(ParseVocabulary(model, &out));
  LAMINA_ASSIGN_OR_RETURN(const Json* merges, GetArray(model, "merges"));
  out.merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    LAMINA_ASSIGN_OR_RETURN(auto pair, ParseMerge(merge));
    out.merges.push_back(std::move(pair));
  }
  LAMINA_ASSIGN_OR_RETURN(out.fuse_unknown, GetBool(model, "fuse_unk", false));
  LAMINA_ASSIGN_OR_RETURN(out.byte_fallback, GetBool(model, "byte_fallback", false));
  LAMINA_ASSIGN_OR_RETURN(out.ignore_merges, GetBool(model, "ignore_merges", false));
  if (Member(model, "unk_token") != nullptr) {
    LAMINA_ASSIGN_OR_RETURN(const std::string unknown, GetString(model, "unk_token"));
    const auto found = out.vocabulary.find(unknown);
    if (found == out.vocabulary.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.json: unk_token \"", unknown, "\" is not in the vocabulary"));
    }
    out.unknown = found->second;
  }
  return out;
}

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json& json) {
  std::vector<AddedToken> out;
  if (Member(json, "added_tokens") == nullptr) {
    return out;
  }
  LAMINA_ASSIGN_OR_RETURN(const Json* tokens, GetArray(json, "added_tokens"));
  for (const Json& token : *tokens) {
    AddedToken added;
    LAMINA_ASSIGN_OR_RETURN(added.content, GetString(token, "content"));
    LAMINA_ASSIGN_OR_RETURN(added.id, GetTokenId(token, "id"));
    LAMINA_ASSIGN_OR_RETURN(added.special, GetBool(token, "special", false));
    LAMINA_ASSIGN_OR_RETURN(added.normalized, GetBool(token, "normalized", !added.special));
    LAMINA_ASSIGN_OR_RETURN(added.single_word, GetBool(token, "single_word", false));
    LAMINA_ASSIGN_OR_RETURN(added.lstrip, GetBool(token, "lstrip", false));
    LAMINA_ASSIGN_OR_RETURN(added.rstrip, GetBool(token, "rstrip", false));
    out.push_back(std::move(added));
  }
  return out;
}

// "<0x41>" is one byte; false for other names.
bool IsByteName(absl::string_view name, std::string* byte) {
  unsigned value = 0;
  if (name.size() != 6 || !absl::StartsWith(name, "<0x") || name[5] != '>') {
    return false;
  }
  const auto parsed = std::from_chars(name.data() + 3, name.data() + 5, value, 16);
  *byte = std::string(1, static_cast<char>(value));
  return parsed.ec == std::errc() && parsed.ptr == name.data() + 5;
}

absl::StatusOr<std::string> BytesOf(const std::string& name, const TokenDecoding& decoding) {
  std::string bytes;
  if (decoding.byte_fallback && IsByteName(name, &bytes)) {
    return bytes;
  }
  if (decoding.byte_level && FromByteCharacters(name, &bytes)) {
    return bytes;
  }
  bytes = name;
  for (const auto& [from, to] : decoding.replacements) {
    LAMINA_ASSIGN_OR_RETURN(bytes, ReplaceWithin(GrownMax(name.size()), bytes, from, to));
  }
  return bytes;
}

absl::Status FillVocabulary(const BpeOptions& model, const std::vector<AddedToken>& added_tokens,
                            const TokenDecoding& decoding, Vocabulary* out) {
  *out = Vocabulary(model.vocabulary.size() + added_tokens.size());
  for (const auto& [name, id] : model.vocabulary) {
    LAMINA_ASSIGN_OR_RETURN(std::string bytes, BytesOf(name, decoding));
    LAMINA_RETURN_IF_ERROR(out->Put(id, {name, std::move(bytes)}));
  }
  // The decoder goes over added tokens, too: Gemma's runs of U+2581 are spaces. Their names are
  // text that no byte was spelled in, and special ones stay as templates write them.
  TokenDecoding of_added = decoding;
  of_added.byte_level = false;
  for (const AddedToken& token : added_tokens) {
    std::string bytes = token.content;
    if (!token.special) {
      LAMINA_ASSIGN_OR_RETURN(bytes, BytesOf(token.content, of_added));
    }
    LAMINA_RETURN_IF_ERROR(out->Put(token.id, {token.content, std::move(bytes), token.special}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerJson> ParseTokenizerJson(absl::string_view text, absl::string_view path) {
  LAMINA_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path, kTableLimits));
  LAMINA_ASSIGN_OR_RETURN(const Json* model_json, GetObject(json, "model"));
  LAMINA_ASSIGN_OR_RETURN(BpeOptions options, ParseModel(*model_json));
  LAMINA_ASSIGN_OR_RETURN(std::vector<AddedToken> added_tokens, ParseAddedTokens(json));
  LAMINA_ASSIGN_OR_RETURN(const TokenDecoding decoding, ParseDecoder(Member(json, "decoder")));
  TokenizerSettings settings;
  LAMINA_RETURN_IF_ERROR(FillVocabulary(options, added_tokens, decoding, &settings.vocabulary));
  settings.strip_first_space = decoding.strip_first_space;
  LAMINA_RETURN_IF_ERROR(ParsePostProcessor(Member(json, "post_processor"), &settings));
  LAMINA_ASSIGN_OR_RETURN(Normalizer normalizer, ParseNormalizer(Member(json, "normalizer")));
  LAMINA_ASSIGN_OR_RETURN(PreTokenizer pre, ParsePreTokenizer(Member(json, "pre_tokenizer")));
  LAMINA_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(std::move(options)));
  return TokenizerJson{{.added_tokens = std::move(added_tokens),
                        .normalizer = std::move(normalizer),
                        .pre_tokenizer = std::move(pre),
                        .model = std::move(model)},
                       std::move(settings)};
}

}  // namespace lamina::model
