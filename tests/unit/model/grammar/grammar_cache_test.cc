// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <future>
#include <thread>

namespace lamina::model {
namespace {

using ::testing::HasSubstr;

OutputForm Form(const std::string& text) { return {OutputForm::Kind::kRegex, text}; }

class NoState final : public GrammarState {
 public:
  absl::Span<const uint32_t> Allowed() override { return {}; }
  bool Accept(TokenId) override { return true; }
  bool ended() const override { return false; }
};

class SizedGrammar final : public Grammar {
 public:
  explicit SizedGrammar(size_t bytes, bool is_slow = false) : bytes_(bytes), is_slow_(is_slow) {}
  std::unique_ptr<GrammarState> Begin() const override { return std::make_unique<NoState>(); }
  size_t bytes() const override { return bytes_; }
  absl::Status CheckSpeed() const override {
    return is_slow_ ? absl::InvalidArgumentError("slow to follow") : absl::OkStatus();
  }

 private:
  size_t bytes_;
  bool is_slow_;
};

// Recurses by 16 KiB so many times, and returns that number.
int Recurse(int depth) {
  volatile char frame[16 * 1024];
  frame[0] = 1;
  return depth == 0 ? 0 : Recurse(depth - 1) + frame[0];
}

// "wrong" is refused, "ambiguous" is slow to follow, "large" is large, "slow" takes 30 ms of the
// processor, "deep" needs 64 MiB of stack, "held" waits.
class Fixture : public ::testing::Test {
 protected:
  class Compiler final : public GrammarCompiler {
   public:
    explicit Compiler(Fixture& test) : test_(test) {}
    absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const OutputForm& form) override {
      ++test_.compiled_;
      if (form.text == "wrong") {
        return absl::InvalidArgumentError("no such form");
      }
      if (form.text == "deep") {
        EXPECT_EQ(Recurse(4096), 4096);
      }
      if (form.text == "held") {
        test_.begun_.set_value();
        test_.go_on_.get_future().wait();
      }
      if (form.text == "until beaten") {
        while (test_.beat_.beats() == 0) {
          std::this_thread::yield();
        }
      }
      if (form.text == "slow") {
        timespec now{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        const auto nanos = [](const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; };
        const auto end = nanos(now) + 30'000'000;
        while (nanos(now) < end) {
          clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        }
      }
      return std::make_shared<SizedGrammar>(form.text == "large" ? 1000 : 10,
                                            form.text == "ambiguous");
    }

   private:
    Fixture& test_;
  };

  GrammarCache::Maker Make() {
    return [this]() -> absl::StatusOr<std::unique_ptr<GrammarCompiler>> {
      ++made_;
      return std::make_unique<Compiler>(*this);
    };
  }

  std::atomic<int> made_{0};
  std::atomic<int> compiled_{0};
  std::promise<void> begun_;
  std::promise<void> go_on_;
  ThreadBeat beat_;
};
using GrammarCacheTest = Fixture;

TEST_F(GrammarCacheTest, CompilesEachFormOnceAndWithOneCompiler) {
  GrammarCache cache(Make(), {});
  EXPECT_EQ(made_, 0) << "not before it is needed";

  const auto first = cache.Get(Form("a"));
  const auto again = cache.Get(Form("a"));
  const auto other = cache.Get(Form("b"));
  const auto schema = cache.Get({OutputForm::Kind::kJsonSchema, "a"});

  ASSERT_TRUE(first.ok() && again.ok() && other.ok() && schema.ok());
  EXPECT_EQ(first->get(), again->get());
  EXPECT_NE(first->get(), other->get());
  EXPECT_NE(first->get(), schema->get());
  EXPECT_EQ(compiled_, 3);
  EXPECT_EQ(made_, 1);
}

// A pattern of quantifiers and the groups of a regular expression in a grammar are recursion.
TEST_F(GrammarCacheTest, TheCompilerMayRecurse) {
  GrammarCache cache(Make(), {});
  EXPECT_TRUE(cache.Get(Form("deep")).ok());
}

TEST_F(GrammarCacheTest, WhoWaitsBeats) {
  GrammarCache cache(Make(), {});
  EXPECT_TRUE(cache.Get(Form("until beaten"), &beat_).ok());
}

TEST_F(GrammarCacheTest, KeepsWhatWasUsedLast) {
  GrammarCache cache(Make(), {.forms_max = 2});
  for (const char* text : {"a", "b", "a", "c", "a"}) {
    ASSERT_TRUE(cache.Get(Form(text)).ok());
  }
  EXPECT_EQ(compiled_, 3);
  ASSERT_TRUE(cache.Get(Form("b")).ok());
  EXPECT_EQ(compiled_, 4) << "b had to go for c";
}

TEST_F(GrammarCacheTest, ErrorsAreKeptToo) {
  GrammarCache cache(Make(), {});
  EXPECT_EQ(cache.Get(Form("wrong")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.Get(Form("wrong")).status().message(), "no such form");
  EXPECT_EQ(compiled_, 1);
}

TEST_F(GrammarCacheTest, AllWhoWaitAreCalledAndOthersNeedNotWait) {
  GrammarCache cache(Make(), {});
  ASSERT_TRUE(cache.Get(Form("there")).ok());
  std::atomic<int> called{0};
  std::promise<void> last;
  cache.Prepare(Form("held"), [&](const GrammarCache::Result&) { ++called; });
  begun_.get_future().wait();
  cache.Prepare(Form("held"), [&](const GrammarCache::Result& result) {
    called += result.ok() ? 1 : 100;
    last.set_value();
  });
  cache.Prepare(Form("there"), [&](const GrammarCache::Result&) { called += 10; });

  EXPECT_EQ(called, 10) << "what is there needs no waiting";
  go_on_.set_value();
  last.get_future().wait();

  EXPECT_EQ(called, 12);
}

TEST_F(GrammarCacheTest, WhatIsBeyondALimitIsRefusedWithBothNumbers) {
  GrammarCache cache(Make(), {.cpu_max = 20'000'000, .bytes_max = 999});
  EXPECT_TRUE(cache.Get(Form("a")).ok());

  const absl::Status slow = cache.Get(Form("slow")).status();
  EXPECT_EQ(slow.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(slow.message()), HasSubstr("at most 20 are allowed"));

  const absl::Status large = cache.Get(Form("large")).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("too complex"));
}

// Compute nodes take what their coordinator took, whose machine may be faster.
TEST_F(GrammarCacheTest, WhatIsSlowToFollowIsRefusedWhereTimeIsBounded) {
  GrammarCache bounded(Make(), {.cpu_max = Seconds(2)});
  EXPECT_EQ(bounded.Get(Form("ambiguous")).status().message(), "slow to follow");
  GrammarCache node(Make(), {});
  EXPECT_TRUE(node.Get(Form("ambiguous")).ok());
}

TEST_F(GrammarCacheTest, AFullQueueRefusesFormsThatAreNotThere) {
  GrammarCache cache(Make(), {.queue_max = 2});
  ASSERT_TRUE(cache.Get(Form("there")).ok());
  cache.Prepare(Form("held"));
  begun_.get_future().wait();
  cache.Prepare(Form("a"));
  cache.Prepare(Form("b"));

  const absl::Status refused = cache.Get(Form("c")).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 forms wait"));
  EXPECT_TRUE(cache.Get(Form("there")).ok()) << "what is there needs no queue";

  go_on_.set_value();
  EXPECT_TRUE(cache.Get(Form("a")).ok()) << "what is queued is compiled";
  EXPECT_TRUE(cache.Get(Form("b")).ok());
  EXPECT_TRUE(cache.Get(Form("c")).ok()) << "a refusal is not kept";
}

TEST_F(GrammarCacheTest, WhatNobodyWaitsForAnyMoreIsNotCompiled) {
  GrammarCache cache(Make(), {});
  cache.Prepare(Form("held"));
  begun_.get_future().wait();
  std::promise<absl::Status> all_gone;
  const auto ignore = [](const GrammarCache::Result&) {};
  cache.Prepare(
      Form("gone"),
      [&](const GrammarCache::Result& result) { all_gone.set_value(result.status()); },
      [] { return true; });
  cache.Prepare(Form("one left"), ignore, [] { return true; });
  cache.Prepare(Form("one left"), ignore, [] { return false; });
  cache.Prepare(Form("ahead"), ignore, [] { return true; });
  cache.Prepare(Form("ahead"));
  go_on_.set_value();

  EXPECT_TRUE(absl::IsCancelled(all_gone.get_future().get()));
  EXPECT_TRUE(cache.Get(Form("one left")).ok());
  EXPECT_TRUE(cache.Get(Form("ahead")).ok());
  EXPECT_EQ(compiled_, 3) << "held, one left, ahead";
  EXPECT_TRUE(cache.Get(Form("gone")).ok()) << "who comes later gets it";
  EXPECT_EQ(compiled_, 4);
}

TEST_F(GrammarCacheTest, WithoutACompilerItSaysWhy) {
  GrammarCache failing([] { return absl::UnimplementedError("not built in"); }, {});
  EXPECT_EQ(failing.Get(Form("a")).status().message(), "not built in");
  GrammarCache none(nullptr, {});
  EXPECT_EQ(none.Get(Form("a")).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(GrammarCacheTest, TheEndCancelsWhatHasNotBegun) {
  std::promise<absl::Status> ended;
  {
    GrammarCache cache(Make(), {});
    cache.Prepare(Form("held"));
    begun_.get_future().wait();
    cache.Prepare(Form("next"),
                  [&](const GrammarCache::Result& result) { ended.set_value(result.status()); });
    go_on_.set_value();
  }
  const absl::Status status = ended.get_future().get();
  EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace lamina::model
