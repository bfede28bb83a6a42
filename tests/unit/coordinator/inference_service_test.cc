// SPDX-License-Identifier: Apache-2.0
#include "coordinator/inference_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/log.h"
#include "coordinator/generate_call_service.h"
#include "coordinator/waiting_calls.h"
#include "model/grammar/grammar_cache.h"
#include "model/tokenizer/text_bound.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/idle_node.h"

namespace lamina::coordinator {
namespace {

// Texts of IdTokenizer. Those that are longer than a gate's width wait until it is opened.
class GatedTokenizer final : public model::Tokenizer {
 public:
  static constexpr size_t kWidth = size_t{64} << 10;

  void Open() { open_.set_value(); }
  int long_texts() const { return long_texts_; }
  void PromiseBytes(size_t per_token) { bound_ = model::TextBound(per_token); }

  absl::StatusOr<std::vector<TokenId>> Encode(absl::string_view text,
                                              const model::EncodeOptions& options) const override {
    if (text.size() > kWidth) {
      ++long_texts_;
      opened_.wait();
    }
    return ids_.Encode(text, options);
  }
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> tokens,
                                     bool skip_special) const override {
    return ids_.Decode(tokens, skip_special);
  }
  std::string TokenBytes(TokenId token, bool skip_special) const override {
    return ids_.TokenBytes(token, skip_special);
  }
  absl::string_view TokenName(TokenId token) const override { return ids_.TokenName(token); }
  size_t tokens_min(absl::string_view text) const override { return bound_.TokensMin(text); }
  size_t vocabulary_size() const override { return ids_.vocabulary_size(); }
  TokenId bos() const override { return ids_.bos(); }
  TokenId eos() const override { return ids_.eos(); }
  absl::Span<const TokenId> end_tokens() const override { return ids_.end_tokens(); }
  TokenId Find(absl::string_view name) const override { return ids_.Find(name); }
  absl::string_view chat_template() const override { return ids_.chat_template(); }

 private:
  const test_support::IdTokenizer ids_{kIdleVocabulary};
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future();
  mutable std::atomic<int> long_texts_ = 0;
  model::TextBound bound_;
};

// What the server has read of its calls so far.
struct CallsRead {
  std::atomic<int> requests = 0;
  std::atomic<int> ends = 0;  // The client has cancelled, or its answer is out.
};

class CountingInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit CountingInterceptor(CallsRead& calls) : calls_(calls) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    calls_.requests += methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) ? 1 : 0;
    calls_.ends += methods->QueryInterceptionHookPoint(Point::POST_RECV_CLOSE) ? 1 : 0;
    methods->Proceed();
  }

 private:
  CallsRead& calls_;
};

class CountingInterceptors final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CountingInterceptors(CallsRead& calls) : calls_(calls) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo*) override {
    return new CountingInterceptor(calls_);
  }

 private:
  CallsRead& calls_;
};

// The service over an engine with one node that is never done, within this process.
class InferenceServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    IdleNode::Join(engine_, options_.nodes[0]);
    AwaitStatus([](const EngineStatus& status) { return status.state == "serving"; });
  }
  void TearDown() override { server_->Shutdown(); }

  template <typename Condition>
  void AwaitStatus(Condition condition) {
    while (!condition(engine_.GetStatus())) {
      std::this_thread::yield();
    }
  }

  uint64_t Failures(const grpc::Status& status) const {
    return engine_.metrics().failures(static_cast<absl::StatusCode>(status.error_code()));
  }

  std::unique_ptr<grpc::Server> Serve(InferenceService& service) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(64 << 20);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> counting;
    counting.push_back(std::make_unique<CountingInterceptors>(calls_read_));
    builder.experimental().SetInterceptorCreators(std::move(counting));
    builder.RegisterService(&service);
    return builder.BuildAndStart();
  }

  // A Score of a text, under way.
  struct Call {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    v1::ScoreResponse response;
    std::promise<grpc::Status> ended;
  };
  std::unique_ptr<Call> Begin(const std::string& text) {
    auto call = std::make_unique<Call>();
    call->request.set_text(text);
    stub_->async()->Score(&call->context, &call->request, &call->response,
                          [call = call.get()](const grpc::Status& s) { call->ended.set_value(s); });
    return call;
  }

  CallsRead calls_read_;
  GatedTokenizer tokenizer_;
  const model::ModelConfig config_{.vocabulary = kIdleVocabulary};
  const EngineOptions options_ = OneIdleNode();
  Engine engine_{options_, tokenizer_, RealClock()};
  InferenceService service_{engine_, tokenizer_, config_, 64};
  const std::unique_ptr<grpc::Server> server_ = Serve(service_);
  const std::unique_ptr<v1::Inference::Stub> stub_ =
      v1::Inference::NewStub(server_->InProcessChannel({}));
};

TEST_F(InferenceServiceTest, AScoreEndsWhenItsClientGoes) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.set_text(" 1 2 3");
  v1::ScoreResponse response;
  std::promise<grpc::Status> ended;
  stub_->async()->Score(&context, &request, &response,
                        [&ended](const grpc::Status& status) { ended.set_value(status); });
  AwaitStatus([](const EngineStatus& status) { return status.scheduler.running == 1; });

  context.TryCancel();

  EXPECT_EQ(ended.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  AwaitStatus([this](const EngineStatus& status) {
    return engine_.metrics().aborted == 1 && status.requests_failed == 0;
  });
}

TEST_F(InferenceServiceTest, AStreamedScoreEndsWhenItsClientGoes) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.set_text(" 1 2 3");
  const auto updates = stub_->ScoreStream(&context, request);
  AwaitStatus([](const EngineStatus& status) { return status.scheduler.running == 1; });

  context.TryCancel();

  v1::ScoreUpdate update;
  EXPECT_FALSE(updates->Read(&update));
  EXPECT_EQ(updates->Finish().error_code(), grpc::StatusCode::CANCELLED);
  AwaitStatus([this](const EngineStatus& status) {
    return engine_.metrics().aborted == 1 && status.requests_failed == 0;
  });
}

TEST_F(InferenceServiceTest, CountsRequestsThatItRefusesItself) {
  v1::GenerateRequest without_prompt;
  v1::GenerateRequest with_form;  // This tokenizer's words are no texts, so that there is no form.
  with_form.set_text(" 1");
  with_form.mutable_sampling()->mutable_form()->set_regex("(");
  for (const v1::GenerateRequest& request : {without_prompt, with_form}) {
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const auto stream = stub_->Generate(&context, request);
    EXPECT_FALSE(stream->Read(&response));
    const grpc::Status refused = stream->Finish();
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(Failures(refused), 1u) << refused.error_message();
  }
}

TEST_F(InferenceServiceTest, TheBestNoneOfSeveralAreRefused) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::GenerateRequest request;
  request.set_text(" 1");
  request.set_n(0);
  request.set_best_of(2);
  v1::GenerateResponse response;
  const auto stream = stub_->Generate(&context, request);
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status refused = stream->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "n is 0; it must be in [1, 128]");
}

TEST_F(InferenceServiceTest, BeamSearchesBeyondTheirBoundsAreRefused) {
  struct Mistake {
    uint32_t width = 0;
    double length_penalty = 1;
    uint32_t n = 1;
    uint32_t best_of = 1;
    const char* said = "";
  };
  for (const Mistake& mistake :
       {Mistake{.width = 0, .said = "beam_width is 0; it must be in [1, 10]"},
        Mistake{.width = 11, .said = "beam_width is 11; it must be in [1, 10]"},
        Mistake{.width = 2, .length_penalty = 101, .said = "length_penalty"},
        Mistake{.width = 2, .n = 3, .said = "n is 3 and beam_width 2"},
        Mistake{.width = 2, .best_of = 2, .said = "best_of"}}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::GenerateRequest request;
    request.set_text(" 1");
    request.set_n(mistake.n);
    if (mistake.best_of > 1) {
      request.set_best_of(mistake.best_of);
    }
    request.mutable_beam_search()->set_width(mistake.width);
    request.mutable_beam_search()->set_length_penalty(mistake.length_penalty);
    v1::GenerateResponse response;
    const auto stream = stub_->Generate(&context, request);
    EXPECT_FALSE(stream->Read(&response)) << mistake.said;
    const grpc::Status refused = stream->Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << mistake.said;
    EXPECT_TRUE(absl::StrContains(refused.error_message(), mistake.said))
        << refused.error_message();
  }
}

TEST_F(InferenceServiceTest, AnUnknownWayToEndASearchIsRefusedByName) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::GenerateRequest request;
  request.set_text(" 1");
  request.mutable_beam_search()->set_width(2);
  request.mutable_beam_search()->set_early_stopping(
      static_cast<v1::BeamSearch::EarlyStopping>(7));  // A newer client may know it.
  v1::GenerateResponse response;
  const auto stream = stub_->Generate(&context, request);
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status refused = stream->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(),
            "early_stopping is 7; it must be EARLY_STOPPING_HEURISTIC (0), EARLY_STOPPING_FULL (1) "
            "or EARLY_STOPPING_NEVER (2)");
}

TEST_F(InferenceServiceTest, ARequestIdThatIsTooLongIsRefusedAndLoggedNowhere) {
  SetUpLogging("coordinator", LogLevel::kInfo);
  testing::internal::CaptureStderr();
  grpc::ClientContext context;
  v1::GenerateRequest request;
  request.set_text(" 1");
  request.set_request_id(std::string(257, 'z'));
  v1::GenerateResponse response;
  const auto stream = stub_->Generate(&context, request);
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status refused = stream->Finish();
  const std::string log = testing::internal::GetCapturedStderr();
  SetUpLogging("coordinator", LogLevel::kWarning);

  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(refused.error_message(), "request_id has 257 bytes; at most 256"))
      << refused.error_message();
  EXPECT_EQ(Failures(refused), 1u);
  EXPECT_TRUE(absl::StrContains(log, "refused")) << log;
  EXPECT_FALSE(absl::StrContains(log, "zzz")) << log;

  grpc::ClientContext cancelling;
  v1::CancelRequest cancel;
  cancel.set_request_id(request.request_id());
  v1::CancelResponse cancelled;
  EXPECT_EQ(stub_->Cancel(&cancelling, cancel, &cancelled).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(InferenceServiceTest, CountsScoresThatItRefusesItself) {
  grpc::ClientContext context;
  v1::ScoreRequest request;
  request.set_text("not of ids");
  v1::ScoreResponse response;

  const grpc::Status refused = stub_->Score(&context, request, &response);

  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Failures(refused), 1u);

  grpc::ClientContext streaming;
  const auto updates = stub_->ScoreStream(&streaming, request);
  v1::ScoreUpdate update;
  EXPECT_FALSE(updates->Read(&update));
  EXPECT_EQ(updates->Finish().error_message(), refused.error_message());
  EXPECT_EQ(Failures(refused), 2u);
}

// What nodes say comes over the same threads, so that a text on each of them looked like the death
// of all nodes.
TEST_F(InferenceServiceTest, LongTextsOccupyNeitherTheServersThreadsNorShortOnes) {
  const std::string text(GatedTokenizer::kWidth + 1, 'x');
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 32; ++i) {  // More than the library has threads.
    calls.push_back(Begin(text));
  }
  while (tokenizer_.long_texts() == 0) {
    std::this_thread::yield();
  }

  grpc::ClientContext listing;
  v1::ListModelsResponse models;
  listing.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(stub_->ListModels(&listing, {}, &models).ok());
  grpc::ClientContext tokenizing;
  v1::TokenizeRequest of_short;
  of_short.set_text(" 1 2 3");
  v1::TokenizeResponse tokens;
  tokenizing.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(stub_->Tokenize(&tokenizing, of_short, &tokens).ok());
  EXPECT_EQ(tokens.tokens_size(), 3);

  tokenizer_.Open();
  for (const auto& call : calls) {
    EXPECT_EQ(call->ended.get_future().get().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(InferenceServiceTest, ATextWhoseClientHasGoneIsNotTokenized) {
  const std::string text(GatedTokenizer::kWidth + 1, 'x');
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(Begin(text));
  }
  // Two are tokenized at a time; the others wait.
  while (tokenizer_.long_texts() < 2 || calls_read_.requests < 8) {
    std::this_thread::yield();
  }
  for (const auto& call : calls) {
    call->context.TryCancel();
  }
  for (const auto& call : calls) {  // The client is told at once.
    EXPECT_EQ(call->ended.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  }
  while (calls_read_.ends < 8) {
    std::this_thread::yield();
  }

  tokenizer_.Open();
  server_->Shutdown();

  EXPECT_EQ(tokenizer_.long_texts(), 2);
}

TEST_F(InferenceServiceTest, TooManyBytesAreRefusedBeforeTheyAreTokenized) {
  tokenizer_.PromiseBytes(100);
  const std::string text(GatedTokenizer::kWidth + 1, 'x');  // Would wait at the gate.
  grpc::ClientContext scoring;
  v1::ScoreRequest score;
  score.set_text(text);
  v1::ScoreResponse scores;
  const grpc::Status refused = stub_->Score(&scoring, score, &scores);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(refused.error_message(),
                                "has 65537 bytes, which are at least 656 tokens; at most 64 fit"))
      << refused.error_message();

  grpc::ClientContext generating;
  v1::GenerateRequest generate;
  generate.set_text(text);
  v1::GenerateResponse response;
  const auto stream = stub_->Generate(&generating, generate);
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status generated = stream->Finish();
  EXPECT_EQ(generated.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(generated.error_message(), "at most 63 fit"));
  EXPECT_EQ(Failures(refused), 2u);
}

TEST_F(InferenceServiceTest, BoundsWhatBecomesTokensOrTextAtOnce) {
  grpc::ClientContext tokenizing;
  v1::TokenizeRequest text;
  text.set_text(std::string((4 << 20) + 1, ' '));
  v1::TokenizeResponse tokens;
  const grpc::Status too_long = stub_->Tokenize(&tokenizing, text, &tokens);
  EXPECT_EQ(too_long.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(too_long.error_message(), "4194305 bytes; at most 4194304"));

  grpc::ClientContext detokenizing;
  v1::DetokenizeRequest many;
  for (int i = 0; i < (1 << 20) + 1; ++i) {
    many.add_tokens(1);
  }
  v1::DetokenizeResponse back;
  const grpc::Status too_many = stub_->Detokenize(&detokenizing, many, &back);
  EXPECT_EQ(too_many.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(too_many.error_message(), "1048577 tokens; at most 1048576"));
}

grpc::Status CancelById(v1::Inference::Stub& stub, const std::string& request_id) {
  grpc::ClientContext context;
  v1::CancelRequest request;
  request.set_request_id(request_id);
  v1::CancelResponse response;
  return stub.Cancel(&context, request, &response);
}

void ExpectCancelledById(grpc::ClientReader<v1::GenerateResponse>& stream) {
  v1::GenerateResponse response;
  EXPECT_FALSE(stream.Read(&response));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status.error_message(), "cancelled by its id");
}

TEST_F(InferenceServiceTest, ARequestIsCancelledByItsIdBeforeTheEngineKnowsIt) {
  v1::GenerateRequest request;
  request.set_request_id("a");
  request.set_prompt_tokens_max(4);
  while (request.text().size() <= GatedTokenizer::kWidth) {
    request.mutable_text()->append(" 1");
  }
  grpc::ClientContext context;
  const auto stream = stub_->Generate(&context, request);
  while (tokenizer_.long_texts() == 0) {
    std::this_thread::yield();
  }

  EXPECT_EQ(CancelById(*stub_, "b").error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status cancelled = CancelById(*stub_, "a");
  EXPECT_TRUE(cancelled.ok()) << cancelled.error_message();
  EXPECT_EQ(CancelById(*stub_, "a").error_code(), grpc::StatusCode::NOT_FOUND);

  tokenizer_.Open();
  ExpectCancelledById(*stream);
  EXPECT_EQ(engine_.GetStatus().scheduler.running, 0u);
}

TEST_F(InferenceServiceTest, ARunningRequestIsCancelledByItsId) {
  v1::GenerateRequest request;
  request.set_request_id("a");
  request.set_text(" 1 2");
  grpc::ClientContext context;
  const auto stream = stub_->Generate(&context, request);
  AwaitStatus([](const EngineStatus& status) { return status.scheduler.running == 1; });

  EXPECT_TRUE(CancelById(*stub_, "a").ok());

  ExpectCancelledById(*stream);
  EXPECT_EQ(CancelById(*stub_, "a").error_code(), grpc::StatusCode::NOT_FOUND);
}

// Every request has a form that is not compiled before the test says so.
class SlowFormService final : public v1::Inference::CallbackService {
 public:
  SlowFormService(Engine& engine, const model::Tokenizer& tokenizer)
      : engine_(engine), tokenizer_(tokenizer) {}

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    const auto call = std::make_shared<GenerateCall>(false, tokenizer_, context);
    auto* const reactor = GenerateCall::Start(call, engine_);
    GenerateCall::Wait(call, waiting_, request->request_id());
    GenerateSpec spec{.request_id = request->request_id(), .prompt = {1}};
    spec.sampling.form = {.kind = OutputForm::Kind::kRegex, .text = "1"};
    GenerateCall::Submit(call, engine_, grammars_, std::move(spec));
    return reactor;
  }

  WaitingCalls& waiting() { return *waiting_; }
  void AwaitCompiler() { asked_.get_future().wait(); }
  void GoOn() { go_on_.set_value(); }

 private:
  Engine& engine_;
  const model::Tokenizer& tokenizer_;
  std::promise<void> asked_;
  std::promise<void> go_on_;
  const std::shared_ptr<WaitingCalls> waiting_ = std::make_shared<WaitingCalls>(1);
  model::GrammarCache grammars_{
      [this]() -> absl::StatusOr<std::unique_ptr<model::GrammarCompiler>> {
        asked_.set_value();
        go_on_.get_future().wait();
        return absl::UnimplementedError("no forms here");
      },
      {}};
};

TEST_F(InferenceServiceTest, WhoWaitsForAFormIsCancelledAtOnce) {
  SlowFormService service(engine_, tokenizer_);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::Inference::NewStub(server->InProcessChannel({}));
  v1::GenerateRequest request;
  request.set_request_id("a");
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, request);
  service.AwaitCompiler();

  EXPECT_TRUE(service.waiting().Cancel("a"));

  ExpectCancelledById(*stream);

  // The place is free when the form has had its turn.
  grpc::ClientContext of_another;
  request.set_request_id("b");
  const auto another = stub->Generate(&of_another, request);
  v1::GenerateResponse response;
  EXPECT_FALSE(another->Read(&response));
  EXPECT_EQ(another->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  service.GoOn();
  server->Shutdown();
}

}  // namespace
}  // namespace lamina::coordinator
