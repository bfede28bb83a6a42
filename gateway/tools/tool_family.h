// SPDX-License-Identifier: Apache-2.0
//
// ToolFamily: how a family of models writes calls of functions. One file each: harmony.cc
// (gpt-oss), hermes.cc (Hermes, Qwen), llama3.cc, mistral.cc, qwen3_coder.cc. Which one a model
// belongs to is read from its chat template.
//
// Calls come about in two ways. A model that may call writes them in its own words, and the
// family's reader finds them; what is no whole, well-formed call of a function that was offered
// stays text. A model that must call is kept to a grammar with the family's CallSyntax; then each
// byte of the arguments can be passed on at once. One that may call, and whose text has a form, is
// kept to a grammar of both, and the family's reader tells them apart.
//
// Threading: the gateway's.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/output_form.h"
#include "gateway/answer_part.h"
#include "gateway/tools/tool_request.h"

namespace lamina::gateway {

// lead, before NAME between ARGUMENTS end, separator, ..., close.
struct CallSyntax {
  std::string in_prompt;  // Ends the prompt when calls are required.
  std::string lead;
  std::string before;
  std::string between;
  std::string end;
  std::string separator;
  std::string close;
};

struct ToolFamily {
  absl::string_view name;
  // Whether a model with this chat template belongs to it.
  bool (*matches)(absl::string_view chat_template);
  CallSyntax syntax;
  // Reads calls that the model wrote of its own accord. `tools` must outlive the reader.
  std::unique_ptr<PartReader> (*make_reader)(const ToolRequest& tools);
  bool keep_special = false;  // Its marks are special tokens, which must be part of the text.
  std::string id_prefix = "call_";
  size_t id_digits = 24;
  // What ends the prompt where an answer must have a form from its first byte on, for families
  // whose answers are in marks always, with thoughts among them. Empty for the others.
  std::string before_text = "";

  bool always_marks() const { return !before_text.empty(); }
};

const ToolFamily& HarmonyFamily();
const ToolFamily& HermesFamily();
const ToolFamily& Llama3Family();
const ToolFamily& MistralFamily();
const ToolFamily& Qwen3CoderFamily();

// "auto": by the template. Null when that fits none, and with "none".
const ToolFamily* ChooseToolFamily(absl::string_view name, absl::string_view chat_template);

// The calls that the tool choice demands, or with "auto" allows, as a format of XGrammar's
// structural tags. Arguments fit the function's schema where a call is demanded, and are any object
// where the model calls of its own accord. Requires: tools.choice is not kNone.
Json CallsFormat(const ToolRequest& tools, const CallSyntax& syntax);

// Reads what CallsFormat() makes. `syntax` must outlive it.
std::unique_ptr<PartReader> MakeEnforcedReader(const CallSyntax& syntax);

// --- For the families' readers ---

struct ReadCall {
  std::string name;
  std::string arguments;  // A JSON object.
};

// A call, {"name": ..., "arguments" or "parameters": {...}}, of one of `tools`.
std::optional<ReadCall> CallOf(const Json& json, const ToolRequest& tools);
std::optional<ReadCall> ParseCall(absl::string_view text, const ToolRequest& tools);

// Where the JSON object or array that begins a text ends: the byte behind it.
class JsonEnd {
 public:
  // Looks at more of the text. The number of its bytes that belong to the value; `done()` says
  // whether it has ended with them.
  size_t Scan(absl::string_view text);
  bool done() const { return done_; }

 private:
  int depth_ = 0;
  bool in_text_ = false;
  bool escaped_ = false;
  bool done_ = false;
};

// Text around calls: spaces that only part calls from each other and from text are left out.
class TextAroundCalls {
 public:
  void Add(absl::string_view text, std::vector<AnswerPart>& parts);
  void AddCall(ReadCall call, std::vector<AnswerPart>& parts);
  void Finish(std::vector<AnswerPart>& parts);
  // With parallel_tool_calls false only the first call is passed on.
  explicit TextAroundCalls(bool parallel) : parallel_(parallel) {}

 private:
  const bool parallel_;
  bool called_ = false;
  std::string spaces_;
};

// The length of the longest end of `text` that is a proper beginning of `mark`.
size_t OpenMark(absl::string_view text, absl::string_view mark);

}  // namespace lamina::gateway
