// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/huggingface_tokenizer.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/mapped_file.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "model/tokenizer/tokenizer_json_internal.h"
#include "model/tokenizer/tool_template.h"

namespace lamina::model {
namespace {

// The small files of a directory; null where there is none.
struct Settings {
  Json tokenizer_config;
  Json special_tokens_map;
  Json generation_config;
  Json config;
  Json added_tokens;
  std::string chat_template;
};

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

absl::StatusOr<Json> ReadJson(const std::string& path) {
  if (!Exists(path)) {
    return Json();
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  return ParseJson(text, path, kSettingsLimits);
}

// The template of that name in a list of named ones; empty when there is none.
std::string NamedTemplate(const Json& list, absl::string_view name) {
  for (const Json& entry : list) {
    if (GetString(entry, "name").value_or("") == name) {
      return GetString(entry, "template").value_or("");
    }
  }
  return "";
}

// The template is a string, or a list of named ones: "default", and "tool_use" for conversations
// with tools. None without a default.
std::string TemplateOf(const Json& settings) {
  const Json* found = Member(settings, "chat_template");
  if (found == nullptr) {
    return "";
  }
  if (found->is_string()) {
    return found->get<std::string>();
  }
  const std::string plain = found->is_array() ? NamedTemplate(*found, "default") : "";
  return plain.empty() ? "" : WithToolTemplate(plain, NamedTemplate(*found, "tool_use"));
}

absl::StatusOr<Settings> ReadSettings(const std::string& directory) {
  Settings out;
  const std::pair<const char*, Json*> files[] = {
      {"tokenizer_config.json", &out.tokenizer_config},
      {"special_tokens_map.json", &out.special_tokens_map},
      {"generation_config.json", &out.generation_config},
      {"config.json", &out.config},
      {"added_tokens.json", &out.added_tokens},
  };
  for (const auto& [name, json] : files) {
    LAMINA_ASSIGN_OR_RETURN(*json, ReadJson(absl::StrCat(directory, "/", name)));
  }
  const std::string jinja = absl::StrCat(directory, "/chat_template.jinja");
  if (Exists(jinja)) {
    LAMINA_ASSIGN_OR_RETURN(const std::string plain, ReadWhole(jinja));
    const std::string with_tools =
        absl::StrCat(directory, "/additional_chat_templates/tool_use.jinja");
    std::string tool_use;
    if (Exists(with_tools)) {
      LAMINA_ASSIGN_OR_RETURN(tool_use, ReadWhole(with_tools));
    }
    out.chat_template = WithToolTemplate(plain, tool_use);
  } else {
    out.chat_template = TemplateOf(out.tokenizer_config);
  }
  if (out.chat_template.empty()) {
    // Where models of text and images have it: their processor's, which is not the tokenizer's.
    LAMINA_ASSIGN_OR_RETURN(const Json processor,
                            ReadJson(absl::StrCat(directory, "/chat_template.json")));
    out.chat_template = TemplateOf(processor);
  }
  return out;
}

// "<s>" or {"content": "<s>", ...}; empty when missing.
std::string TokenContent(const Json& json, const char* key) {
  const Json* member = Member(json, key);
  if (member == nullptr) {
    return "";
  }
  return member->is_string() ? member->get<std::string>()
                             : GetString(*member, "content").value_or("");
}

// A number, or a list of numbers. Numbers below zero stand for none.
absl::StatusOr<std::vector<TokenId>> TokenIds(const Json& json, const char* key) {
  std::vector<TokenId> out;
  const Json* member = Member(json, key);
  if (member == nullptr) {
    return out;
  }
  const Json one = member->is_array() ? Json() : Json::array({*member});
  for (const Json& id : member->is_array() ? *member : one) {
    if (id.is_number_unsigned()) {
      LAMINA_ASSIGN_OR_RETURN(out.emplace_back(), AsTokenId(id, key));
    }
  }
  return out;
}

// The token's name in the tokenizer's own settings, else its id in the model's; -1 for none.
// `find` gives the id of a name.
template <typename Find>
absl::StatusOr<TokenId> FindRole(const Settings& settings, const char* name_key, const char* id_key,
                                 const Find& find) {
  for (const Json* json : {&settings.tokenizer_config, &settings.special_tokens_map}) {
    const std::string content = TokenContent(*json, name_key);
    if (!content.empty() && find(content) >= 0) {
      return find(content);
    }
  }
  for (const Json* json : {&settings.generation_config, &settings.config}) {
    LAMINA_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, TokenIds(*json, id_key));
    if (!ids.empty()) {
      return ids[0];
    }
  }
  return -1;
}

absl::StatusOr<std::vector<TokenId>> GenerationEnds(const Settings& settings) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<TokenId> out,
                          TokenIds(settings.generation_config, "eos_token_id"));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<TokenId> more,
                          TokenIds(settings.config, "eos_token_id"));
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

// The classes of LLaMA's and Gemma's tokenizers put BOS and EOS where tokenizer_config.json says,
// whatever tokenizer.json's post-processor does.
absl::Status PutEndsAsConfigured(const Json& config, TokenizerSettings* out) {
  const std::string name = GetString(config, "tokenizer_class").value_or("");
  if (!absl::StartsWith(name, "Llama") && !absl::StartsWith(name, "CodeLlama") &&
      !absl::StartsWith(name, "Gemma")) {
    return absl::OkStatus();
  }
  const auto put = [&config](const char* key, TokenId token,
                             std::vector<TokenId>* ends) -> absl::Status {
    LAMINA_ASSIGN_OR_RETURN(const bool add, GetBool(config, key, false));
    if (Member(config, key) != nullptr && (!add || token >= 0)) {
      *ends = add ? std::vector<TokenId>{token} : std::vector<TokenId>{};
    }
    return absl::OkStatus();
  };
  LAMINA_RETURN_IF_ERROR(put("add_bos_token", out->bos, &out->prefix));
  return put("add_eos_token", out->eos, &out->suffix);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadJson(const std::string& path,
                                                    const Settings& settings) {
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadWhole(path));
  LAMINA_ASSIGN_OR_RETURN(TokenizerJson parsed, ParseTokenizerJson(text, path));
  TokenizerSettings& out = parsed.settings;
  const auto find = [&out](const std::string& name) { return out.vocabulary.Find(name); };
  const auto within = [&out](TokenId id) { return out.vocabulary.Contains(id) ? id : -1; };
  LAMINA_ASSIGN_OR_RETURN(const TokenId bos, FindRole(settings, "bos_token", "bos_token_id", find));
  LAMINA_ASSIGN_OR_RETURN(const TokenId eos, FindRole(settings, "eos_token", "eos_token_id", find));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<TokenId> ends, GenerationEnds(settings));
  out.bos = within(bos);
  out.eos = within(eos);
  LAMINA_RETURN_IF_ERROR(PutEndsAsConfigured(settings.tokenizer_config, &out));
  out.end_tokens = FindEndTokens(out.vocabulary, out.eos, ends);
  out.chat_template = settings.chat_template;
  return BpeTokenizer::Create(std::move(parsed.pipeline), std::move(out));
}

// Tokens that were added to a SentencePiece model: {"32000": {"content": ...}} in
// tokenizer_config.json, or {"<x>": 32000} in added_tokens.json.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(const Settings& settings) {
  std::vector<AddedToken> out;
  if (const Json* table = Member(settings.tokenizer_config, "added_tokens_decoder")) {
    for (const auto& [key, value] : table->items()) {
      AddedToken token;
      if (!absl::SimpleAtoi(key, &token.id)) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer_config.json: added token \"", key, "\" is not an id"));
      }
      LAMINA_ASSIGN_OR_RETURN(token.content, GetString(value, "content"));
      LAMINA_ASSIGN_OR_RETURN(token.special, GetBool(value, "special", false));
      LAMINA_ASSIGN_OR_RETURN(token.single_word, GetBool(value, "single_word", false));
      LAMINA_ASSIGN_OR_RETURN(token.lstrip, GetBool(value, "lstrip", false));
      LAMINA_ASSIGN_OR_RETURN(token.rstrip, GetBool(value, "rstrip", false));
      out.push_back(std::move(token));
    }
    return out;
  }
  if (settings.added_tokens.is_object()) {
    for (const auto& [content, id] : settings.added_tokens.items()) {
      LAMINA_ASSIGN_OR_RETURN(const TokenId value,
                              GetTokenId(settings.added_tokens, content.c_str()));
      static_cast<void>(id);
      out.push_back({.content = content, .id = value});
    }
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const std::string& path,
                                                             const Settings& settings) {
  SentencePieceOptions options;
  LAMINA_ASSIGN_OR_RETURN(options.serialized, ReadWhole(path));
  LAMINA_ASSIGN_OR_RETURN(options.added_tokens, ReadAddedTokens(settings));
  LAMINA_ASSIGN_OR_RETURN(options.add_bos,
                          GetBool(settings.tokenizer_config, "add_bos_token", true));
  LAMINA_ASSIGN_OR_RETURN(options.add_eos,
                          GetBool(settings.tokenizer_config, "add_eos_token", false));
  LAMINA_ASSIGN_OR_RETURN(options.prefix_after_special,
                          GetBool(settings.tokenizer_config, "legacy", true));
  const auto find = [&options](const std::string& name) {
    for (const AddedToken& token : options.added_tokens) {
      if (token.content == name) {
        return token.id;
      }
    }
    return TokenId{-1};
  };
  LAMINA_ASSIGN_OR_RETURN(options.bos, FindRole(settings, "bos_token", "bos_token_id", find));
  LAMINA_ASSIGN_OR_RETURN(options.eos, FindRole(settings, "eos_token", "eos_token_id", find));
  LAMINA_ASSIGN_OR_RETURN(options.end_tokens, GenerationEnds(settings));
  options.chat_template = settings.chat_template;
  return SentencePieceTokenizer::Create(std::move(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadHuggingFaceTokenizer(const std::string& directory) {
  LAMINA_ASSIGN_OR_RETURN(const Settings settings, ReadSettings(directory));
  const std::string json = absl::StrCat(directory, "/tokenizer.json");
  if (Exists(json)) {
    return LoadJson(json, settings);
  }
  const std::string model = absl::StrCat(directory, "/tokenizer.model");
  if (Exists(model)) {
    return LoadSentencePiece(model, settings);
  }
  return absl::NotFoundError(
      absl::StrCat(directory,
                   " has neither tokenizer.json nor tokenizer.model; save the model's "
                   "AutoTokenizer there with transformers' save_pretrained"));
}

}  // namespace lamina::model
