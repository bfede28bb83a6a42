// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <charconv>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "model/tokenizer/sentencepiece_model.h"

namespace lamina::model {
namespace {

absl::StatusOr<std::unique_ptr<SentencePieceLibrary>> LoadLibrary(const std::string& serialized) {
  std::string error;
  auto library = SentencePieceLibrary::Load(serialized, &error);
  if (library == nullptr || library->size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the SentencePiece model cannot be read: ",
                     library == nullptr ? error : "it has no pieces"));
  }
  return library;
}

// "<0x41>" is one byte.
std::string ByteOf(const std::string& name) {
  unsigned value = 0;
  if (name.size() == 6) {
    std::from_chars(name.data() + 3, name.data() + 5, value, 16);
  }
  return std::string(1, static_cast<char>(value));
}

// Special tokens are shown as templates write them.
std::string TextOf(const std::string& name, bool special) {
  return special ? name : absl::StrReplaceAll(name, {{kSpaceMark, " "}});
}

VocabularyEntry MakeEntry(const SentencePieceLibrary& library, TokenId id) {
  VocabularyEntry entry;
  entry.name = library.Name(id);
  const PieceKind kind = library.Kind(id);
  entry.special = kind == PieceKind::kSpecial;
  entry.bytes = kind == PieceKind::kByte ? ByteOf(entry.name) : TextOf(entry.name, entry.special);
  return entry;
}

// The library does not tell; so see whether it puts a space before a letter.
bool PutsSpaceFirst(const SentencePieceLibrary& library) {
  std::vector<TokenId> ids;
  std::string error;
  return library.Encode("a", &ids, &error) && !ids.empty() &&
         absl::StartsWith(library.Name(ids[0]), kSpaceMark);
}

// Puts the model's own pieces and the added tokens into the vocabulary; the model's special pieces
// are added tokens as well.
absl::Status FillVocabulary(const SentencePieceLibrary& library, SentencePieceOptions* options,
                            Vocabulary* vocabulary) {
  std::vector<AddedToken> own;
  *vocabulary = Vocabulary(static_cast<size_t>(library.size()) + options->added_tokens.size());
  for (TokenId id = 0; id < library.size(); ++id) {
    VocabularyEntry entry = MakeEntry(library, id);
    if (entry.special) {
      own.push_back({.content = entry.name, .id = id, .special = true});
    }
    LAMINA_RETURN_IF_ERROR(vocabulary->Put(id, std::move(entry)));
  }
  for (const AddedToken& token : options->added_tokens) {
    LAMINA_RETURN_IF_ERROR(vocabulary->Put(
        token.id, {token.content, TextOf(token.content, token.special), token.special}));
  }
  // The caller's come last, because the last of equal contents counts.
  options->added_tokens.insert(options->added_tokens.begin(), own.begin(), own.end());
  return absl::OkStatus();
}

TokenizerSettings MakeSettings(const SentencePieceLibrary& library, Vocabulary vocabulary,
                               SentencePieceOptions* options) {
  TokenizerSettings settings;
  settings.vocabulary = std::move(vocabulary);
  // A model's configuration may name ids that its tokenizer does not have.
  const auto known = [&settings](TokenId id, TokenId otherwise) {
    return settings.vocabulary.Contains(id) ? id : otherwise;
  };
  settings.bos = known(options->bos, library.bos());
  settings.eos = known(options->eos, library.eos());
  settings.end_tokens = FindEndTokens(settings.vocabulary, settings.eos, options->end_tokens);
  if (options->add_bos && settings.bos >= 0) {
    settings.prefix.push_back(settings.bos);
  }
  if (options->add_eos && settings.eos >= 0) {
    settings.suffix.push_back(settings.eos);
  }
  settings.strip_first_space = PutsSpaceFirst(library);
  settings.chat_template = std::move(options->chat_template);
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> SentencePieceTokenizer::Create(
    SentencePieceOptions options) {
  LAMINA_ASSIGN_OR_RETURN(std::unique_ptr<SentencePieceLibrary> first,
                          LoadLibrary(options.serialized));
  std::unique_ptr<SentencePieceLibrary> rest;
  if (!options.prefix_after_special) {
    LAMINA_ASSIGN_OR_RETURN(rest, LoadLibrary(WithoutSpacePrefix(options.serialized)));
  }
  Vocabulary vocabulary;
  LAMINA_RETURN_IF_ERROR(FillVocabulary(*first, &options, &vocabulary));
  LAMINA_RETURN_IF_ERROR(CheckAddedTokens(options.added_tokens));
  TokenizerSettings settings = MakeSettings(*first, std::move(vocabulary), &options);
  AddedTokens added_tokens(std::move(options.added_tokens));
  return std::unique_ptr<Tokenizer>(new SentencePieceTokenizer(
      std::move(settings), std::move(added_tokens), std::move(first), std::move(rest)));
}

SentencePieceTokenizer::SentencePieceTokenizer(TokenizerSettings settings, AddedTokens added_tokens,
                                               std::unique_ptr<SentencePieceLibrary> first,
                                               std::unique_ptr<SentencePieceLibrary> rest)
    : VocabularyTokenizer(std::move(settings)),
      added_tokens_(std::move(added_tokens)),
      first_(std::move(first)),
      rest_(std::move(rest)) {}

absl::Status SentencePieceTokenizer::EncodeText(absl::string_view text, bool parse_special,
                                                std::vector<TokenId>* out) const {
  for (const AddedTokenSegment& segment : added_tokens_.Split(text, parse_special)) {
    if (segment.id >= 0) {
      out->push_back(segment.id);
      continue;
    }
    const SentencePieceLibrary& library = rest_ == nullptr || segment.begin == 0 ? *first_ : *rest_;
    std::string error;
    if (!library.Encode({text.data() + segment.begin, segment.end - segment.begin}, out, &error)) {
      return absl::InternalError(absl::StrCat("SentencePiece failed to encode a text: ", error));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::model
