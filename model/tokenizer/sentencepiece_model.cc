// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/sentencepiece_model.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace lamina::model {
namespace {

// Field numbers of sentencepiece.proto.
enum ModelField : uint32_t { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3 };
enum PieceField : uint32_t { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField : uint32_t {
  kModelType = 3,
  kVocabularySize = 4,
  kByteFallback = 35,
  kUnknownId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43,
  kUnknownPiece = 45,
};
enum NormalizerField : uint32_t {
  kName = 1,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5,
};
constexpr uint64_t kModelTypeBpe = 2;
constexpr int64_t kTypeUnknown = 2;
constexpr int64_t kTypeByte = 6;

// Wire types of protocol buffers.
enum WireType : uint32_t { kVarint = 0, kLengthDelimited = 2, kFixed32 = 5 };

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) {
    out->push_back(static_cast<char>(value | 0x80));
  }
  out->push_back(static_cast<char>(value));
}

void PutTag(uint32_t field, WireType type, std::string* out) { PutVarint(field << 3 | type, out); }

// Negative numbers are sign-extended to 64 bits, as int32 fields are.
void PutNumber(uint32_t field, int64_t value, std::string* out) {
  PutTag(field, kVarint, out);
  PutVarint(static_cast<uint64_t>(value), out);
}

void PutString(uint32_t field, absl::string_view value, std::string* out) {
  PutTag(field, kLengthDelimited, out);
  PutVarint(value.size(), out);
  absl::StrAppend(out, value);
}

void PutFloat(uint32_t field, float value, std::string* out) {
  PutTag(field, kFixed32, out);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>(bits >> shift));
  }
}

std::string SerializeTrainer(const SentencePieceModel& model) {
  std::string out;
  PutNumber(kModelType, kModelTypeBpe, &out);
  PutNumber(kVocabularySize, static_cast<int64_t>(model.entries.size()), &out);
  bool bytes = false;
  for (size_t id = 0; id < model.entries.size(); ++id) {
    bytes = bytes || model.entries[id].type == kTypeByte;
    if (model.entries[id].type == kTypeUnknown) {
      PutNumber(kUnknownId, static_cast<int64_t>(id), &out);
      PutString(kUnknownPiece, model.entries[id].text, &out);
    }
  }
  PutNumber(kByteFallback, bytes ? 1 : 0, &out);
  PutNumber(kBosId, model.bos, &out);
  PutNumber(kEosId, model.eos, &out);
  PutNumber(kPadId, -1, &out);
  return out;
}

}  // namespace

std::string SerializeSentencePieceModel(const SentencePieceModel& model) {
  std::string out;
  for (const SentencePieceEntry& entry : model.entries) {
    std::string piece;
    PutString(kPiece, entry.text, &piece);
    PutFloat(kScore, entry.score, &piece);
    PutNumber(kType, entry.type, &piece);
    PutString(kPieces, piece, &out);
  }
  PutString(kTrainerSpec, SerializeTrainer(model), &out);
  std::string normalizer;
  PutString(kName, "identity", &normalizer);
  PutNumber(kAddDummyPrefix, model.add_space_prefix ? 1 : 0, &normalizer);
  PutNumber(kRemoveExtraWhitespaces, model.remove_extra_whitespaces ? 1 : 0, &normalizer);
  PutNumber(kEscapeWhitespaces, 1, &normalizer);
  PutString(kNormalizerSpec, normalizer, &out);
  return out;
}

std::string WithoutSpacePrefix(absl::string_view serialized) {
  // A message that occurs twice is merged field by field, and the later value wins.
  std::string normalizer;
  PutNumber(kAddDummyPrefix, 0, &normalizer);
  std::string out(serialized);
  PutString(kNormalizerSpec, normalizer, &out);
  return out;
}

}  // namespace lamina::model
