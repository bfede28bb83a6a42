// SPDX-License-Identifier: Apache-2.0
//
// The plugin around the SentencePiece library; see sentencepiece_library_internal.h.

#include <sentencepiece_processor.h>

#include "model/tokenizer/sentencepiece_library_internal.h"

namespace lamina::model {
namespace {

class Processor final : public SentencePieceLibrary {
 public:
  bool Load(const std::string& serialized, std::string* error) {
    const auto status = library_.LoadFromSerializedProto(serialized);
    *error = status.ok() ? "" : status.ToString();
    return status.ok();
  }

  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const override {
    std::vector<int> encoded;
    const auto status = library_.Encode(text, &encoded);
    if (!status.ok()) {
      *error = status.ToString();
      return false;
    }
    ids->insert(ids->end(), encoded.begin(), encoded.end());
    return true;
  }

  int32_t size() const override { return library_.GetPieceSize(); }
  const std::string& Name(int32_t id) const override { return library_.IdToPiece(id); }
  PieceKind Kind(int32_t id) const override {
    if (library_.IsByte(id)) {
      return PieceKind::kByte;
    }
    const bool special = library_.IsControl(id) || library_.IsUnknown(id);
    return special ? PieceKind::kSpecial : PieceKind::kText;
  }
  int32_t bos() const override { return library_.bos_id(); }
  int32_t eos() const override { return library_.eos_id(); }

 private:
  sentencepiece::SentencePieceProcessor library_;
};

}  // namespace
}  // namespace lamina::model

extern "C" __attribute__((visibility("default"))) lamina::model::SentencePieceLibrary*
LaminaLoadSentencePiece(const std::string& serialized, std::string* error) {
  auto processor = std::make_unique<lamina::model::Processor>();
  return processor->Load(serialized, error) ? processor.release() : nullptr;
}
