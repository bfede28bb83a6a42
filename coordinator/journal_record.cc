// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journal_record.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fnv1a.h"

namespace lamina::coordinator {
namespace {

constexpr absl::string_view kMagic = "LMNJRNL3";
constexpr size_t kFrameBytes = 12;  // Size and checksum.

enum class Kind : uint8_t {
  kIdentity = 1,
  kAccepted = 2,
  kCommitted = 3,
  kEnded = 4,
  kAcceptedScore = 5
};

constexpr uint8_t kOutside = 1;  // A flag of a token.

class Writer {
 public:
  explicit Writer(Kind kind) { Byte(static_cast<uint8_t>(kind)); }

  void Byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void Word(uint32_t value) { Number(value, 4); }
  void Long(uint64_t value) { Number(value, 8); }
  void Float(float value) { Word(std::bit_cast<uint32_t>(value)); }
  void Text(absl::string_view text) {
    Word(static_cast<uint32_t>(text.size()));
    absl::StrAppend(&bytes_, text);
  }

  // The record: its size and checksum, then what was written.
  std::string Frame() const {
    Fnv1a checksum;
    checksum.Add(bytes_);
    Writer head;
    head.Word(static_cast<uint32_t>(bytes_.size()));
    head.Long(checksum.value());
    return absl::StrCat(head.bytes_, bytes_);
  }

 private:
  Writer() = default;
  void Number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) {
      Byte(static_cast<uint8_t>(value >> (8 * i)));
    }
  }

  std::string bytes_;
};

// Once something was missing everything reads as 0, and ok() is false.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  uint8_t Byte() { return static_cast<uint8_t>(Number(1)); }
  uint32_t Word() { return static_cast<uint32_t>(Number(4)); }
  uint64_t Long() { return Number(8); }
  float Float() { return std::bit_cast<float>(Word()); }
  std::string Text() { return std::string(Take(Word())); }

  bool ok() const { return ok_; }
  size_t left() const { return rest_.size(); }

 private:
  absl::string_view Take(size_t bytes) {
    if (bytes > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    int shift = 0;
    for (const char byte : Take(bytes)) {
      value |= uint64_t{static_cast<uint8_t>(byte)} << shift;
      shift += 8;
    }
    return value;
  }

  absl::string_view rest_;
  bool ok_ = true;
};

void WriteToken(const plan::SampledToken& token, Writer& out) {
  out.Word(static_cast<uint32_t>(token.token));
  out.Float(token.logprob);
  out.Byte(static_cast<uint8_t>(token.finish));
  out.Byte(token.outside ? kOutside : 0);
  out.Byte(static_cast<uint8_t>(token.top.size()));
  for (const plan::TokenLogprob& top : token.top) {
    out.Word(static_cast<uint32_t>(top.token));
    out.Float(top.logprob);
  }
}

std::optional<plan::FinishReason> ReadFinish(Reader& in) {
  const uint8_t value = in.Byte();
  if (value > static_cast<uint8_t>(plan::FinishReason::kError)) {
    return std::nullopt;
  }
  return static_cast<plan::FinishReason>(value);
}

bool ReadToken(Reader& in, plan::SampledToken& token) {
  token.token = static_cast<TokenId>(in.Word());
  token.logprob = in.Float();
  const std::optional<plan::FinishReason> finish = ReadFinish(in);
  token.finish = finish.value_or(plan::FinishReason::kNone);
  token.outside = (in.Byte() & kOutside) != 0;
  const uint8_t tops = in.Byte();
  for (uint8_t i = 0; i < tops && in.ok(); ++i) {
    const auto id = static_cast<TokenId>(in.Word());
    token.top.push_back({.token = id, .logprob = in.Float()});
  }
  return in.ok() && finish.has_value();
}

// What the records say so far.
class Replay {
 public:
  // Whether the record is one of this format.
  bool Take(absl::string_view record) {
    Reader in(record);
    switch (static_cast<Kind>(in.Byte())) {
      case Kind::kIdentity:
        contents_.identity = in.Text();
        return in.ok();
      case Kind::kAccepted:
        return TakeAccepted(in, /*score=*/false);
      case Kind::kAcceptedScore:
        return TakeAccepted(in, /*score=*/true);
      case Kind::kCommitted:
        return TakeCommitted(in);
      case Kind::kEnded: {
        const uint64_t number = in.Long();
        requests_.erase(number);
        return in.ok();
      }
    }
    return false;
  }

  JournalContents Finish(uint64_t bytes_cut) {
    for (auto& [number, request] : requests_) {
      contents_.unfinished.push_back(std::move(request));
    }
    contents_.bytes_cut = bytes_cut;
    return std::move(contents_);
  }

 private:
  bool TakeAccepted(Reader& in, bool score) {
    AcceptedRecord accepted{.number = in.Long(), .score = score};
    accepted.id = in.Text();
    accepted.followed_id = in.Text();
    accepted.message = in.Text();
    if (!in.ok() || accepted.number == 0) {
      return false;
    }
    contents_.number_max = std::max(contents_.number_max, accepted.number);
    const uint64_t number = accepted.number;
    requests_[number].accepted = std::move(accepted);
    return true;
  }

  bool TakeCommitted(Reader& in) {
    const uint64_t number = in.Long();
    const uint32_t choice = in.Word();
    const uint32_t index = in.Word();
    const std::optional<plan::FinishReason> finish = ReadFinish(in);
    const uint32_t count = in.Word();
    std::vector<plan::SampledToken> tokens;
    for (uint32_t i = 0; i < count && in.ok(); ++i) {
      if (!ReadToken(in, tokens.emplace_back())) {
        return false;
      }
    }
    if (!in.ok() || !finish.has_value() || choice >= kChoicesMax) {
      return false;
    }
    const auto request = requests_.find(number);
    if (request == requests_.end()) {
      return true;  // It has ended.
    }
    std::vector<GeneratedChoice>& choices = request->second.choices;
    choices.resize(std::max<size_t>(choices.size(), choice + 1));
    GeneratedChoice& generated = choices[choice];
    if (generated.tokens.size() != index) {
      return true;  // It has these tokens.
    }
    generated.tokens.insert(generated.tokens.end(), std::make_move_iterator(tokens.begin()),
                            std::make_move_iterator(tokens.end()));
    generated.ended = *finish;
    return true;
  }

  JournalContents contents_;
  std::map<uint64_t, UnfinishedRequest> requests_;  // By number.
};

}  // namespace

std::string JournalHead(absl::string_view identity) {
  Writer out(Kind::kIdentity);
  out.Text(identity);
  return absl::StrCat(kMagic, out.Frame());
}

std::string Encode(const AcceptedRecord& record) {
  Writer out(record.score ? Kind::kAcceptedScore : Kind::kAccepted);
  out.Long(record.number);
  out.Text(record.id);
  out.Text(record.followed_id);
  out.Text(record.message);
  return out.Frame();
}

std::string Encode(const CommittedRecord& record) {
  Writer out(Kind::kCommitted);
  out.Long(record.number);
  out.Word(record.choice);
  out.Word(record.index);
  out.Byte(static_cast<uint8_t>(record.finish));
  out.Word(static_cast<uint32_t>(record.tokens.size()));
  for (const plan::SampledToken& token : record.tokens) {
    WriteToken(token, out);
  }
  return out.Frame();
}

std::string EncodeEnded(uint64_t number) {
  Writer out(Kind::kEnded);
  out.Long(number);
  return out.Frame();
}

JournalContents ReadJournal(absl::string_view bytes) {
  Replay replay;
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return replay.Finish(bytes.size());
  }
  bytes.remove_prefix(kMagic.size());
  while (bytes.size() >= kFrameBytes) {
    Reader head(bytes.substr(0, kFrameBytes));
    const uint32_t size = head.Word();
    const uint64_t checksum = head.Long();
    const absl::string_view record = bytes.substr(kFrameBytes, size);
    Fnv1a actual;
    actual.Add(record);
    // No record is empty, so that zeros are none.
    if (size == 0 || record.size() != size || actual.value() != checksum || !replay.Take(record)) {
      break;
    }
    bytes.remove_prefix(kFrameBytes + size);
  }
  return replay.Finish(bytes.size());
}

}  // namespace lamina::coordinator
