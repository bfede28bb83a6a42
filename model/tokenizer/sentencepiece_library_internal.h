// SPDX-License-Identifier: Apache-2.0
//
// SentencePieceLibrary: one loaded SentencePiece model, behind standard types only. The library's
// header declares absl::string_view to be std::string_view, which contradicts abseil's own: nothing
// that includes abseil may include it.
//
// The library also carries an old copy of protobuf under protobuf's own names. A program that links
// both crashes before main. So it lives in a plugin (sentencepiece_plugin.cc) that is loaded when
// the first SentencePiece model is, with its own symbols in front; docs/adr/0012 has the story.
//
// Threading: immutable after Load(); const calls from any thread.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lamina::model {

enum class PieceKind : uint8_t { kText, kByte, kSpecial };

class SentencePieceLibrary {
 public:
  // `serialized` is the content of a tokenizer.model file. nullptr, and why, when it is none, or
  // when the plugin cannot be loaded.
  static std::unique_ptr<SentencePieceLibrary> Load(const std::string& serialized,
                                                    std::string* error);
  virtual ~SentencePieceLibrary() = default;

  // Appends the ids of valid UTF-8; false, and why, when the library fails.
  virtual bool Encode(std::string_view text, std::vector<int32_t>* ids,
                      std::string* error) const = 0;

  virtual int32_t size() const = 0;
  virtual const std::string& Name(int32_t id) const = 0;
  virtual PieceKind Kind(int32_t id) const = 0;
  virtual int32_t bos() const = 0;  // -1 for none.
  virtual int32_t eos() const = 0;  // -1 for none.
};

// What the plugin exports, under this name.
inline constexpr char kSentencePieceEntry[] = "LaminaLoadSentencePiece";
using SentencePieceLoader = SentencePieceLibrary*(const std::string& serialized,
                                                  std::string* error);

}  // namespace lamina::model
