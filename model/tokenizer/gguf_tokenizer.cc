// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "model/tokenizer/bpe_tokenizer.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/pre_tokenizer_catalog.h"
#include "model/tokenizer/sentencepiece_model.h"
#include "model/tokenizer/sentencepiece_tokenizer.h"
#include "model/tokenizer/tool_template.h"

namespace lamina::model {
namespace {

// tokenizer.ggml.token_type.
constexpr int64_t kTypeNormal = 1;
constexpr int64_t kTypeUnknown = 2;
constexpr int64_t kTypeControl = 3;
constexpr int64_t kTypeUserDefined = 4;

std::string Key(absl::string_view name) { return absl::StrCat("tokenizer.ggml.", name); }

// What both kinds read.
struct GgufVocabulary {
  absl::Span<const std::string> names;
  std::vector<int64_t> types;
  TokenId bos = -1;
  TokenId eos = -1;
  std::vector<TokenId> end_tokens;
  std::string chat_template;
};

// -1 when the key is missing.
absl::StatusOr<TokenId> ReadTokenId(const GgufFile& file, absl::string_view name, size_t size) {
  if (!file.Has(Key(name))) {
    return -1;
  }
  LAMINA_ASSIGN_OR_RETURN(const uint64_t id, file.GetUint(Key(name)));
  if (id >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Key(name), " is ", id, ", but the vocabulary has ", size, " tokens"));
  }
  return static_cast<TokenId>(id);
}

absl::StatusOr<bool> ReadFlag(const GgufFile& file, absl::string_view name, bool fallback) {
  return file.Has(Key(name)) ? file.GetBool(Key(name)) : fallback;
}

absl::Status ReadTypes(const GgufFile& file, GgufVocabulary* vocabulary) {
  if (!file.Has(Key("token_type"))) {
    vocabulary->types.assign(vocabulary->names.size(), kTypeNormal);
    return absl::OkStatus();
  }
  LAMINA_ASSIGN_OR_RETURN(const absl::Span<const int64_t> types, file.GetInts(Key("token_type")));
  if (types.size() != vocabulary->names.size()) {
    return absl::InvalidArgumentError(absl::StrCat(Key("token_type"), " has ", types.size(),
                                                   " entries and ", Key("tokens"), " has ",
                                                   vocabulary->names.size()));
  }
  vocabulary->types.assign(types.begin(), types.end());
  // Some files, like those of Phi-3, say of no end of a turn that it is one.
  for (size_t i = 0; i < vocabulary->names.size(); ++i) {
    if (IsEndName(vocabulary->names[i])) {
      vocabulary->types[i] = kTypeControl;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufVocabulary> ReadVocabulary(const GgufFile& file) {
  GgufVocabulary out;
  LAMINA_ASSIGN_OR_RETURN(out.names, file.GetStrings(Key("tokens")));
  const size_t size = out.names.size();
  if (size == 0 || size > static_cast<size_t>(kVocabularyMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Key("tokens"), " has ", size, " entries; 1 to ", kVocabularyMax, " expected"));
  }
  LAMINA_RETURN_IF_ERROR(ReadTypes(file, &out));
  LAMINA_ASSIGN_OR_RETURN(out.bos, ReadTokenId(file, "bos_token_id", size));
  LAMINA_ASSIGN_OR_RETURN(out.eos, ReadTokenId(file, "eos_token_id", size));
  for (const absl::string_view name : {"eot_token_id", "eom_token_id"}) {
    LAMINA_ASSIGN_OR_RETURN(const TokenId id, ReadTokenId(file, name, size));
    out.end_tokens.push_back(id);
  }
  if (file.Has("tokenizer.chat_template")) {
    LAMINA_ASSIGN_OR_RETURN(const std::string plain, file.GetString("tokenizer.chat_template"));
    out.chat_template =
        WithToolTemplate(plain, file.GetString("tokenizer.chat_template.tool_use").value_or(""));
  }
  return out;
}

// A merge is written "left right"; the space cannot be a character of either.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadMerges(const GgufFile& file) {
  LAMINA_ASSIGN_OR_RETURN(const absl::Span<const std::string> lines,
                          file.GetStrings(Key("merges")));
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t space = lines[i].find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == lines[i].size()) {
      return absl::InvalidArgumentError(absl::StrCat(Key("merges"), " entry ", i, " is \"",
                                                     lines[i], "\"; \"left right\" expected"));
    }
    out.emplace_back(lines[i].substr(0, space), lines[i].substr(space + 1));
  }
  return out;
}

// The name of the rules by which text is cut. Files that were made before there were names say
// nothing, and only the architecture can hint at it.
absl::StatusOr<std::string> ReadPreTokenizerName(const GgufFile& file) {
  if (file.Has(Key("pre"))) {
    return file.GetString(Key("pre"));
  }
  if (file.GetString("general.architecture").value_or("") == "gptneox") {
    return std::string("gpt-neox");
  }
  LogWarning("tokenizer pre-tokenizer unnamed using default: the file has no ", Key("pre"),
             ", so token ids may differ from those the model was trained with");
  return std::string("default");
}

absl::Status FillBpe(const GgufVocabulary& read, Vocabulary* vocabulary, BpeOptions* bpe,
                     std::vector<AddedToken>* added_tokens) {
  *vocabulary = Vocabulary(read.names.size());
  for (size_t i = 0; i < read.names.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string& name = read.names[i];
    const int64_t type = read.types[i];
    VocabularyEntry entry{.name = name, .special = type == kTypeControl || type == kTypeUnknown};
    if (type != kTypeNormal || !FromByteCharacters(name, &entry.bytes)) {
      entry.bytes = name;
    }
    LAMINA_RETURN_IF_ERROR(vocabulary->Put(id, std::move(entry)));
    // Merges may pass through any entry, special or not, as in the reference implementation.
    bpe->vocabulary.emplace(name, id);
    if (type == kTypeControl || type == kTypeUnknown || type == kTypeUserDefined) {
      added_tokens->push_back({.content = name,
                               .id = id,
                               .special = type != kTypeUserDefined,
                               .normalized = type == kTypeUserDefined});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpe(const GgufFile& file, GgufVocabulary read) {
  LAMINA_ASSIGN_OR_RETURN(const std::string name, ReadPreTokenizerName(file));
  LAMINA_ASSIGN_OR_RETURN(NamedPreTokenizer pre, MakeNamedPreTokenizer(name));
  TokenizerSettings settings;
  BpeOptions bpe;
  bpe.ignore_merges = pre.ignore_merges;
  std::vector<AddedToken> added_tokens;
  LAMINA_RETURN_IF_ERROR(FillBpe(read, &settings.vocabulary, &bpe, &added_tokens));
  LAMINA_ASSIGN_OR_RETURN(bpe.merges, ReadMerges(file));
  LAMINA_ASSIGN_OR_RETURN(BpeModel model, BpeModel::Create(std::move(bpe)));

  LAMINA_ASSIGN_OR_RETURN(const bool add_bos, ReadFlag(file, "add_bos_token", pre.add_bos));
  LAMINA_ASSIGN_OR_RETURN(const bool add_eos, ReadFlag(file, "add_eos_token", false));
  settings.bos = read.bos;
  settings.eos = read.eos;
  if (add_bos && read.bos >= 0) {
    settings.prefix.push_back(read.bos);
  }
  if (add_eos && read.eos >= 0) {
    settings.suffix.push_back(read.eos);
  }
  settings.end_tokens = FindEndTokens(settings.vocabulary, settings.eos, read.end_tokens);
  settings.chat_template = std::move(read.chat_template);
  return BpeTokenizer::Create({.added_tokens = std::move(added_tokens),
                               .normalizer = std::move(pre.normalizer),
                               .pre_tokenizer = std::move(pre.pre_tokenizer),
                               .model = std::move(model)},
                              std::move(settings));
}

// SentencePiece wants exactly one unknown token. Some files mark none, or more than one.
absl::Status KeepOneUnknown(const GgufFile& file, GgufVocabulary* read) {
  LAMINA_ASSIGN_OR_RETURN(TokenId unknown,
                          ReadTokenId(file, "unknown_token_id", read->types.size()));
  for (size_t i = 0; i < read->types.size(); ++i) {
    if (read->types[i] == kTypeUnknown) {
      unknown = unknown < 0 ? static_cast<TokenId>(i) : unknown;
      read->types[i] = kTypeControl;
    }
  }
  if (unknown < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the vocabulary has no unknown token, by type or as ", Key("unknown_token_id")));
  }
  read->types[static_cast<size_t>(unknown)] = kTypeUnknown;
  return absl::OkStatus();
}

// Phi-3's special tokens take the white space behind them, all but three, which no key says.
std::vector<AddedToken> MarksOfPhi3(const GgufVocabulary& read) {
  constexpr absl::string_view kBare[] = {"<unk>", "<s>", "<|endoftext|>"};
  std::vector<AddedToken> marks;
  for (size_t i = 0; i < read.names.size(); ++i) {
    const bool special = read.types[i] == kTypeControl;
    if ((special || read.types[i] == kTypeUserDefined) &&
        std::find(std::begin(kBare), std::end(kBare), read.names[i]) == std::end(kBare)) {
      marks.push_back({.content = read.names[i],
                       .id = static_cast<TokenId>(i),
                       .special = special,
                       .rstrip = true});
    }
  }
  return marks;
}

// Tokens that people add to a model, ChatML's marks among them, are user-defined ones. The text
// behind one begins with the space that the model puts first, and no space stands before one.
std::vector<AddedToken> UserDefinedTokens(const GgufVocabulary& read) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < read.names.size(); ++i) {
    if (read.types[i] == kTypeUserDefined) {
      tokens.push_back({.content = read.names[i], .id = static_cast<TokenId>(i)});
    }
  }
  return tokens;
}

// Converters write user-defined pieces with spaces, and the library looks for pieces in text where
// each space is a mark. A piece whose marked name another one has keeps its own: the library takes
// no two alike.
void MarkSpaces(std::vector<SentencePieceEntry>* entries) {
  absl::flat_hash_set<std::string> names;
  for (const SentencePieceEntry& entry : *entries) {
    names.insert(entry.text);
  }
  for (SentencePieceEntry& entry : *entries) {
    if (entry.type == kTypeUserDefined) {
      std::string marked = absl::StrReplaceAll(entry.text, {{" ", kSpaceMark}});
      if (names.insert(marked).second) {
        entry.text = std::move(marked);
      }
    }
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePiece(const GgufFile& file,
                                                             GgufVocabulary read) {
  LAMINA_ASSIGN_OR_RETURN(const absl::Span<const double> scores, file.GetFloats(Key("scores")));
  if (scores.size() != read.names.size()) {
    return absl::InvalidArgumentError(absl::StrCat(Key("scores"), " has ", scores.size(),
                                                   " entries and ", Key("tokens"), " has ",
                                                   read.names.size()));
  }
  LAMINA_RETURN_IF_ERROR(KeepOneUnknown(file, &read));
  SentencePieceModel model{.bos = read.bos, .eos = read.eos};
  for (size_t i = 0; i < read.names.size(); ++i) {
    model.entries.push_back({read.names[i], static_cast<float>(scores[i]), read.types[i]});
  }
  MarkSpaces(&model.entries);
  LAMINA_ASSIGN_OR_RETURN(model.add_space_prefix, ReadFlag(file, "add_space_prefix", true));
  LAMINA_ASSIGN_OR_RETURN(model.remove_extra_whitespaces,
                          ReadFlag(file, "remove_extra_whitespaces", false));
  SentencePieceOptions options;
  options.serialized = SerializeSentencePieceModel(model);
  if (file.GetString("general.architecture").value_or("") == "phi3") {
    options.added_tokens = MarksOfPhi3(read);
  } else if (model.add_space_prefix) {  // Else the library finds the same.
    options.added_tokens = UserDefinedTokens(read);
  }
  LAMINA_ASSIGN_OR_RETURN(options.add_bos, ReadFlag(file, "add_bos_token", true));
  LAMINA_ASSIGN_OR_RETURN(options.add_eos, ReadFlag(file, "add_eos_token", false));
  options.bos = read.bos;
  options.eos = read.eos;
  options.end_tokens = std::move(read.end_tokens);
  options.chat_template = std::move(read.chat_template);
  return SentencePieceTokenizer::Create(std::move(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGgufTokenizer(const GgufFile& file) {
  if (!file.Has(Key("model"))) {
    return absl::NotFoundError(
        absl::StrCat("the GGUF file has no tokenizer (no key ", Key("model"), ")"));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string kind, file.GetString(Key("model")));
  if (kind != "gpt2" && kind != "llama") {
    return absl::UnimplementedError(absl::StrCat(Key("model"), " is \"", kind,
                                                 "\"; known ones: gpt2 (byte-level BPE), llama "
                                                 "(SentencePiece)"));
  }
  LAMINA_ASSIGN_OR_RETURN(GgufVocabulary read, ReadVocabulary(file));
  return kind == "gpt2" ? LoadBpe(file, std::move(read)) : LoadSentencePiece(file, std::move(read));
}

}  // namespace lamina::model
