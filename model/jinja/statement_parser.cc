// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/limits.h"
#include "model/jinja/parser.h"
#include "model/jinja/parser_internal.h"

namespace lamina::jinja {
namespace {

using MutableStatement = std::unique_ptr<Statement>;
using StatementOr = absl::StatusOr<MutableStatement>;
using EndNames = absl::Span<const absl::string_view>;

// Jinja's, but not ours.
constexpr absl::string_view kUnsupported[] = {"autoescape", "block",  "debug",   "do",   "extends",
                                              "from",       "import", "include", "trans"};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::StatusOr<Body> Run() { return ParseBody({}); }

 private:
  MutableStatement Make(StatementKind kind) const {
    auto out = std::make_unique<Statement>();
    out->kind = kind;
    out->line = Current().line;
    return out;
  }

  bool IsEnd(EndNames end) const {
    return Next().kind == TokenKind::kName &&
           std::find(end.begin(), end.end(), Next().text) != end.end();
  }

  // Up to a block that begins with a name of `end`, which is then current; to the end of the
  // template when `end` is empty.
  absl::StatusOr<Body> ParseBody(EndNames end) {
    if (depth_ >= kNestingMax) {
      return ErrorAt(Current().line,
                     absl::StrCat("statements are nested deeper than ", kNestingMax));
    }
    ++depth_;
    const absl::Cleanup leave = [this] { --depth_; };
    Body body;
    while (Current().kind != TokenKind::kEnd) {
      if (Current().kind == TokenKind::kData) {
        MutableStatement text = Make(StatementKind::kText);
        text->text = Current().text;
        body.push_back(std::move(text));
        Skip();
      } else if (Current().kind == TokenKind::kVariableBegin) {
        MutableStatement output = Make(StatementKind::kOutput);
        Skip();
        LAMINA_ASSIGN_OR_RETURN(output->expression, ParseTuple(true, {}, false));
        LAMINA_RETURN_IF_ERROR(Expect(TokenKind::kVariableEnd));
        body.push_back(std::move(output));
      } else {
        const bool ends = IsEnd(end);
        Skip();
        if (ends) {
          return body;
        }
        LAMINA_ASSIGN_OR_RETURN(MutableStatement statement, ParseStatement());
        LAMINA_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd));
        body.push_back(std::move(statement));
      }
    }
    if (!end.empty()) {
      return ErrorAt(Current().line,
                     absl::StrCat("the template ends where ", end.back(), " is expected"));
    }
    return body;
  }

  // The rest of the current block, its body, and the name that ends it, which is skipped.
  absl::StatusOr<Body> ParseBlock(absl::string_view end) {
    LAMINA_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd));
    LAMINA_ASSIGN_OR_RETURN(Body body, ParseBody({&end, 1}));
    Skip();
    return body;
  }

  absl::Status Expect(TokenKind kind) {
    if (Current().kind != kind) {
      return Unexpected();
    }
    Skip();
    return absl::OkStatus();
  }

  StatementOr ParseStatement() {
    const int line = Current().line;
    LAMINA_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (name == "if") {
      return ParseIf(line);
    }
    if (name == "for") {
      return ParseFor(line);
    }
    if (name == "set") {
      return ParseSet(line);
    }
    if (name == "macro") {
      return ParseMacro(line);
    }
    if (name == "call") {
      return ParseCall(line);
    }
    if (name == "filter") {
      return ParseFilterBlock(line);
    }
    if (name == "with") {
      return ParseWith(line);
    }
    if (name == "generation") {
      MutableStatement out = Make(StatementKind::kGeneration);
      LAMINA_ASSIGN_OR_RETURN(out->body, ParseBlock("endgeneration"));
      return out;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) {
        return ErrorAt(line, absl::StrCat("{% ", name, " %} outside of a loop"));
      }
      return Make(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
    }
    if (std::find(std::begin(kUnsupported), std::end(kUnsupported), name) !=
        std::end(kUnsupported)) {
      return UnsupportedAt(line, absl::StrCat("{% ", name, " %}"));
    }
    return ErrorAt(line, absl::StrCat("unknown statement {% ", name, " %}"));
  }

  StatementOr ParseIf(int line) {
    MutableStatement out = Make(StatementKind::kIf);
    out->line = line;
    for (;;) {
      LAMINA_ASSIGN_OR_RETURN(MutableExpression condition, ParseTuple(false, {}, false));
      out->conditions.push_back(std::move(condition));
      LAMINA_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd));
      static constexpr absl::string_view kEnds[] = {"elif", "else", "endif"};
      LAMINA_ASSIGN_OR_RETURN(Body body, ParseBody(kEnds));
      out->bodies.push_back(std::move(body));
      if (SkipName("elif")) {
        continue;
      }
      if (SkipName("else")) {
        LAMINA_ASSIGN_OR_RETURN(body, ParseBlock("endif"));
        out->bodies.push_back(std::move(body));
      } else {
        Skip();
      }
      return out;
    }
  }

  StatementOr ParseFor(int line) {
    static constexpr absl::string_view kIn[] = {"in"};
    static constexpr absl::string_view kRecursive[] = {"recursive", "if"};
    static constexpr absl::string_view kEnds[] = {"else", "endfor"};
    MutableStatement out = Make(StatementKind::kFor);
    out->line = line;
    LAMINA_ASSIGN_OR_RETURN(out->target, ParseTarget(kIn, false));
    if (Names(out->target, "loop")) {
      return ErrorAt(line, "a loop may not write the variable loop");
    }
    if (!SkipName("in")) {
      return Unexpected();
    }
    LAMINA_ASSIGN_OR_RETURN(out->expression, ParseTuple(false, kRecursive, false));
    if (SkipName("if")) {
      LAMINA_ASSIGN_OR_RETURN(out->condition, ParseExpression());
    }
    if (IsName("recursive")) {
      return UnsupportedAt(line, "{% for ... recursive %}");
    }
    LAMINA_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd));
    ++loops_;
    const absl::Cleanup leave = [this] { --loops_; };
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseBody(kEnds));
    if (SkipName("else")) {
      LAMINA_ASSIGN_OR_RETURN(out->else_body, ParseBlock("endfor"));
    } else {
      Skip();
    }
    return out;
  }

  static bool Names(const Target& target, absl::string_view name) {
    return target.name == name ||
           std::any_of(target.parts.begin(), target.parts.end(),
                       [name](const Target& part) { return Names(part, name); });
  }

  absl::StatusOr<Target> ParseOneTarget(bool attributes) {
    Target out{.line = Current().line};
    if (SkipOperator("(")) {
      if (depth_ + ++target_depth_ > kNestingMax) {
        return Unexpected();
      }
      const absl::Cleanup leave = [this] { --target_depth_; };
      LAMINA_ASSIGN_OR_RETURN(out, ParseTarget({}, attributes));
      LAMINA_RETURN_IF_ERROR(ExpectOperator(")"));
      return out;
    }
    LAMINA_ASSIGN_OR_RETURN(out.name, ExpectName());
    for (const absl::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (out.name == constant) {
        return ErrorAt(out.line, absl::StrCat("cannot assign to ", constant));
      }
    }
    if (attributes && SkipOperator(".")) {
      LAMINA_ASSIGN_OR_RETURN(out.attribute, ExpectName());
    }
    return out;
  }

  // A name, `name.attribute` if allowed, or several with commas.
  absl::StatusOr<Target> ParseTarget(EndNames end, bool attributes) {
    LAMINA_ASSIGN_OR_RETURN(Target first, ParseOneTarget(attributes));
    if (!IsOperator(",")) {
      return first;
    }
    Target out{.line = first.line};
    out.parts.push_back(std::move(first));
    while (SkipOperator(",")) {
      if (IsOperator("=") || IsOperator(")") ||
          std::any_of(end.begin(), end.end(),
                      [this](absl::string_view name) { return IsName(name); })) {
        break;
      }
      LAMINA_ASSIGN_OR_RETURN(Target part, ParseOneTarget(attributes));
      out.parts.push_back(std::move(part));
    }
    return out;
  }

  StatementOr ParseSet(int line) {
    MutableStatement out = Make(StatementKind::kSet);
    out->line = line;
    LAMINA_ASSIGN_OR_RETURN(out->target, ParseTarget({}, true));
    if (SkipOperator("=")) {
      LAMINA_ASSIGN_OR_RETURN(out->expression, ParseTuple(true, {}, false));
      return out;
    }
    out->kind = StatementKind::kSetBlock;
    if (IsOperator("|")) {
      LAMINA_ASSIGN_OR_RETURN(out->expression, ParseFilterChain(nullptr, false));
    }
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseOutsideOfLoops("endset"));
    return out;
  }

  // A body that becomes a function or a text: break and continue do not reach out of it.
  absl::StatusOr<Body> ParseOutsideOfLoops(absl::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const absl::Cleanup leave = [this, loops] { loops_ = loops; };
    return ParseBlock(end);
  }

  absl::Status ParseParameters(Statement* out) {
    LAMINA_RETURN_IF_ERROR(ExpectOperator("("));
    while (!IsOperator(")")) {
      Parameter parameter;
      LAMINA_ASSIGN_OR_RETURN(parameter.name, ExpectName());
      if (SkipOperator("=")) {
        LAMINA_ASSIGN_OR_RETURN(parameter.fallback, ParseExpression());
      } else if (!out->parameters.empty() && out->parameters.back().fallback != nullptr) {
        return ErrorAt(out->line, "a parameter without a default after one with a default");
      }
      out->parameters.push_back(std::move(parameter));
      if (!IsOperator(")")) {
        LAMINA_RETURN_IF_ERROR(ExpectOperator(","));
      }
    }
    Skip();
    return absl::OkStatus();
  }

  StatementOr ParseMacro(int line) {
    MutableStatement out = Make(StatementKind::kMacro);
    out->line = line;
    LAMINA_ASSIGN_OR_RETURN(out->name, ExpectName());
    const size_t start = position();
    LAMINA_RETURN_IF_ERROR(ParseParameters(out.get()));
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseOutsideOfLoops("endmacro"));
    out->uses_varargs = Mentions("varargs", start);
    out->uses_kwargs = Mentions("kwargs", start);
    out->uses_caller = Mentions("caller", start);
    return out;
  }

  StatementOr ParseCall(int line) {
    MutableStatement out = Make(StatementKind::kCallBlock);
    out->line = line;
    out->name = "caller";
    if (IsOperator("(")) {
      LAMINA_RETURN_IF_ERROR(ParseParameters(out.get()));
    }
    LAMINA_ASSIGN_OR_RETURN(out->expression, ParseExpression());
    if (out->expression->kind != ExpressionKind::kCall) {
      return ErrorAt(line, "{% call %} without a call");
    }
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseOutsideOfLoops("endcall"));
    return out;
  }

  StatementOr ParseFilterBlock(int line) {
    MutableStatement out = Make(StatementKind::kFilter);
    out->line = line;
    LAMINA_ASSIGN_OR_RETURN(out->expression, ParseFilterChain(nullptr, true));
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseOutsideOfLoops("endfilter"));
    return out;
  }

  StatementOr ParseWith(int line) {
    MutableStatement out = Make(StatementKind::kWith);
    out->line = line;
    while (Current().kind != TokenKind::kBlockEnd) {
      if (!out->targets.empty()) {
        LAMINA_RETURN_IF_ERROR(ExpectOperator(","));
      }
      LAMINA_ASSIGN_OR_RETURN(Target target, ParseOneTarget(false));
      out->targets.push_back(std::move(target));
      LAMINA_RETURN_IF_ERROR(ExpectOperator("="));
      LAMINA_ASSIGN_OR_RETURN(MutableExpression value, ParseExpression());
      out->values.push_back(std::move(value));
    }
    LAMINA_ASSIGN_OR_RETURN(out->body, ParseBlock("endwith"));
    return out;
  }

  int depth_ = 0;
  int target_depth_ = 0;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Body> Parse(absl::string_view source) {
  LAMINA_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace lamina::jinja
