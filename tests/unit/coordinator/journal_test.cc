// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/recording_sink.h"

namespace lamina::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

plan::SampledToken Token(TokenId id) {
  return {.token = id, .logprob = -0.5f * static_cast<float>(id)};
}

AcceptedRecord Request(uint64_t number) {
  return {.number = number,
          .id = absl::StrCat("id", number),
          .followed_id = "followed",
          .message = std::string("a\0b", 3)};
}

std::vector<TokenId> Ids(const UnfinishedRequest& request, size_t choice = 0) {
  std::vector<TokenId> ids;
  for (const plan::SampledToken& token : request.choices.at(choice).tokens) {
    ids.push_back(token.token);
  }
  return ids;
}

TEST(JournalRecordTest, WhatIsWrittenReadsBackAsTheSame) {
  plan::SampledToken token = Token(7);
  token.finish = plan::FinishReason::kStop;
  token.top = {{.token = 7, .logprob = -3.5f}, {.token = -1, .logprob = -4.0f}};
  const JournalContents contents = ReadJournal(absl::StrCat(
      JournalHead("model"), Encode(Request(3)),
      Encode(CommittedRecord{.number = 3, .tokens = {Token(5)}}),
      Encode(CommittedRecord{
          .number = 3, .index = 1, .tokens = {token}, .finish = plan::FinishReason::kStop})));

  EXPECT_EQ(contents.identity, "model");
  EXPECT_EQ(contents.bytes_cut, 0u);
  EXPECT_EQ(contents.number_max, 3u);
  ASSERT_THAT(contents.unfinished, SizeIs(1));
  const UnfinishedRequest& request = contents.unfinished[0];
  EXPECT_EQ(request.accepted.id, "id3");
  EXPECT_EQ(request.accepted.followed_id, "followed");
  EXPECT_EQ(request.accepted.message, std::string("a\0b", 3));
  ASSERT_THAT(request.choices, SizeIs(1));
  EXPECT_EQ(request.choices[0].ended, plan::FinishReason::kStop);
  ASSERT_THAT(Ids(request), ElementsAre(5, 7));
  const std::vector<plan::SampledToken>& tokens = request.choices[0].tokens;
  EXPECT_EQ(tokens[0].finish, plan::FinishReason::kNone);
  EXPECT_EQ(tokens[0].logprob, -2.5f);
  EXPECT_EQ(tokens[1].finish, plan::FinishReason::kStop);
  ASSERT_THAT(tokens[1].top, SizeIs(2));
  EXPECT_EQ(tokens[1].top[1].token, -1);
  EXPECT_EQ(tokens[1].top[1].logprob, -4.0f);
}

TEST(JournalRecordTest, ChoicesHaveTokensOfTheirOwn) {
  const std::string head = absl::StrCat(JournalHead("model"), Encode(Request(1)));
  const JournalContents contents = ReadJournal(absl::StrCat(
      head, Encode(CommittedRecord{.number = 1, .choice = 2, .tokens = {Token(7)}}),
      Encode(CommittedRecord{.number = 1, .tokens = {Token(5)}}),
      Encode(CommittedRecord{
          .number = 1, .choice = 2, .index = 1, .finish = plan::FinishReason::kLength})));

  ASSERT_THAT(contents.unfinished, SizeIs(1));
  const UnfinishedRequest& request = contents.unfinished[0];
  ASSERT_THAT(request.choices, SizeIs(3));
  EXPECT_THAT(Ids(request, 0), ElementsAre(5));
  EXPECT_THAT(Ids(request, 1), IsEmpty());
  EXPECT_THAT(Ids(request, 2), ElementsAre(7));
  EXPECT_EQ(request.choices[0].ended, plan::FinishReason::kNone);
  EXPECT_EQ(request.choices[2].ended, plan::FinishReason::kLength);

  const std::string beyond = Encode(CommittedRecord{.number = 1, .choice = kChoicesMax});
  EXPECT_EQ(ReadJournal(absl::StrCat(head, beyond)).bytes_cut, beyond.size());
}

TEST(JournalRecordTest, AScoreIsReadAsOne) {
  AcceptedRecord score = Request(2);
  score.score = true;
  const JournalContents contents =
      ReadJournal(absl::StrCat(JournalHead("model"), Encode(Request(1)), Encode(score)));
  ASSERT_THAT(contents.unfinished, SizeIs(2));
  EXPECT_FALSE(contents.unfinished[0].accepted.score);
  EXPECT_TRUE(contents.unfinished[1].accepted.score);
  EXPECT_EQ(contents.unfinished[1].accepted.message, score.message);
}

TEST(JournalRecordTest, EndedRequestsAreGoneAndTokensCountOnce) {
  const std::string token = Encode(CommittedRecord{.number = 2, .tokens = {Token(5)}});
  const JournalContents contents =
      ReadJournal(absl::StrCat(JournalHead("model"), Encode(Request(1)), Encode(Request(2)), token,
                               token, EncodeEnded(1), EncodeEnded(9)));

  ASSERT_THAT(contents.unfinished, SizeIs(1));
  EXPECT_EQ(contents.unfinished[0].accepted.number, 2u);
  EXPECT_THAT(Ids(contents.unfinished[0]), ElementsAre(5));
}

TEST(JournalRecordTest, ATornEndIsCutOff) {
  const std::string whole =
      absl::StrCat(JournalHead("model"), Encode(Request(1)),
                   Encode(CommittedRecord{.number = 1, .tokens = {Token(5)}}));
  const std::string last =
      Encode(CommittedRecord{.number = 1, .index = 1, .tokens = {Token(6), Token(7)}});
  for (size_t bytes = 0; bytes < last.size(); ++bytes) {
    const JournalContents contents = ReadJournal(absl::StrCat(whole, last.substr(0, bytes)));
    EXPECT_EQ(contents.bytes_cut, bytes);
    ASSERT_THAT(contents.unfinished, SizeIs(1));
    EXPECT_THAT(Ids(contents.unfinished[0]), ElementsAre(5));
  }
  const JournalContents zeros = ReadJournal(absl::StrCat(whole, std::string(100, '\0')));
  EXPECT_EQ(zeros.bytes_cut, 100u);
}

TEST(JournalRecordTest, AFlippedByteCutsOffWhatIsBehindIt) {
  const std::string head = absl::StrCat(JournalHead("model"), Encode(Request(1)));
  const std::string rest =
      absl::StrCat(Encode(CommittedRecord{.number = 1, .tokens = {Token(5)}}), EncodeEnded(1));
  for (size_t at = 0; at < rest.size(); ++at) {
    std::string flipped = absl::StrCat(head, rest);
    flipped[head.size() + at] = static_cast<char>(flipped[head.size() + at] ^ 0x10);
    const JournalContents contents = ReadJournal(flipped);
    EXPECT_GT(contents.bytes_cut, 0u) << at;
    ASSERT_THAT(contents.unfinished, SizeIs(1)) << at;
  }
}

TEST(JournalRecordTest, AnotherFileIsNoJournal) {
  EXPECT_EQ(ReadJournal("something else").bytes_cut, 14u);
  EXPECT_EQ(ReadJournal("").bytes_cut, 0u);
}

// A disk in memory that may be full.
struct MemoryDisk {
  std::string bytes;
  std::atomic<bool> full = false;
  std::atomic<bool> removed = false;
  std::atomic<int> replaced = 0;
  std::atomic<int> synced = 0;
};

class MemoryJournalDisk final : public JournalDisk {
 public:
  explicit MemoryJournalDisk(MemoryDisk& disk) : disk_(disk) {}

  absl::StatusOr<std::string> Read() override { return disk_.bytes; }
  absl::Status Replace(absl::string_view bytes) override {
    ++disk_.replaced;
    return Write(bytes, "");
  }
  absl::Status Append(absl::string_view bytes) override { return Write(bytes, disk_.bytes); }
  absl::Status Sync() override {
    ++disk_.synced;
    return absl::OkStatus();
  }
  void Remove() override { disk_.removed = true; }

 private:
  absl::Status Write(absl::string_view bytes, const std::string& behind) {
    if (disk_.full) {
      return absl::ResourceExhaustedError("write journal: No space left on device");
    }
    disk_.bytes = absl::StrCat(behind, bytes);
    return absl::OkStatus();
  }

  MemoryDisk& disk_;
};

JournalOptions Options(std::string identity = "model") {
  return {.identity = std::move(identity), .gather = 0};
}

std::unique_ptr<Journal> OpenIn(MemoryDisk& disk, JournalOptions options = Options()) {
  absl::StatusOr<std::unique_ptr<Journal>> journal =
      Journal::Open(std::make_unique<MemoryJournalDisk>(disk), std::move(options));
  EXPECT_TRUE(journal.ok()) << journal.status();
  return *std::move(journal);
}

ChoiceOutput Output(std::vector<plan::SampledToken> tokens,
                    plan::FinishReason finish = plan::FinishReason::kNone, uint32_t choice = 0) {
  return {.index = choice, .tokens = std::move(tokens), .finish = finish};
}

template <typename Condition>
void Await(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::this_thread::yield();
  }
}

TEST(JournalTest, TheNextOneHasWhatDidNotEndAndNothingElse) {
  MemoryDisk disk;
  {
    const auto journal = OpenIn(disk);
    EXPECT_THAT(journal->TakeUnfinished(), IsEmpty());
    JournaledRequest open(*journal, Request(journal->NewNumber()));
    JournaledRequest ended(*journal, Request(journal->NewNumber()));
    open.Accepted("open");
    ended.Accepted("ended");
    open.Committed(Output({Token(1)}));
    open.Committed(Output({Token(2)}));
    EXPECT_TRUE(open.is_recorded());
    open.LeaveOpen();
  }

  const auto journal = OpenIn(disk);
  const std::vector<UnfinishedRequest> unfinished = journal->TakeUnfinished();

  ASSERT_THAT(unfinished, SizeIs(1));
  EXPECT_EQ(unfinished[0].accepted.id, "open");
  EXPECT_THAT(Ids(unfinished[0]), ElementsAre(1, 2));
  EXPECT_GT(journal->NewNumber(), unfinished[0].accepted.number);
  EXPECT_FALSE(absl::StrContains(disk.bytes, "ended"));
}

TEST(JournalTest, ARequestGoesOnBehindTheTokensThatTheJournalHas) {
  MemoryDisk disk;
  disk.bytes =
      absl::StrCat(JournalHead("model"), Encode(Request(4)),
                   Encode(CommittedRecord{.number = 4, .tokens = {Token(1), Token(2)}}),
                   Encode(CommittedRecord{.number = 4, .choice = 1, .tokens = {Token(8)}}));
  {
    const auto journal = OpenIn(disk);
    JournaledRequest request(*journal, 4, {2, 1});
    request.Accepted("id4");
    request.Committed(Output({Token(1)}));
    request.Committed(Output({Token(2)}));
    request.Committed(Output({Token(8)}, plan::FinishReason::kNone, 1));
    request.Committed(Output({Token(3)}));
    request.Committed(Output({Token(9)}, plan::FinishReason::kNone, 1));
    request.Committed(Output({}, plan::FinishReason::kLength));
    request.LeaveOpen();
  }

  const JournalContents contents = ReadJournal(disk.bytes);

  ASSERT_THAT(contents.unfinished, SizeIs(1));
  EXPECT_THAT(Ids(contents.unfinished[0]), ElementsAre(1, 2, 3));
  EXPECT_EQ(contents.unfinished[0].choices[0].ended, plan::FinishReason::kLength);
  EXPECT_THAT(Ids(contents.unfinished[0], 1), ElementsAre(8, 9));
  EXPECT_EQ(contents.unfinished[0].choices[1].ended, plan::FinishReason::kNone);
}

// Answers of a search come all at once, and those of the next one are the same.
TEST(JournalTest, OfWhatBeginsAnewTheAcceptanceAloneIsRecorded) {
  MemoryDisk disk;
  {
    const auto journal = OpenIn(disk);
    const GenerateSpec specs[] = {{}, {.beams = {.width = 2}}, {.score = true}};
    for (const GenerateSpec& spec : specs) {
      const auto request =
          std::make_shared<JournaledRequest>(*journal, Request(journal->NewNumber()));
      const auto behind = std::make_shared<RecordingSink>();
      const std::shared_ptr<RequestSink> sink = RecordedSink(spec, behind, request);
      sink->OnAccepted("mine");
      sink->OnOutput(OutputOf({5, 6}, plan::FinishReason::kLength));
      EXPECT_THAT(behind->tokens, ElementsAre(5, 6));
      request->LeaveOpen();
    }
  }

  const JournalContents contents = ReadJournal(disk.bytes);

  ASSERT_THAT(contents.unfinished, SizeIs(3));
  EXPECT_THAT(Ids(contents.unfinished[0]), ElementsAre(5, 6));
  EXPECT_THAT(contents.unfinished[1].choices, IsEmpty());
  EXPECT_THAT(contents.unfinished[2].choices, IsEmpty());
}

TEST(JournalTest, OneThatHasEndedIsNotUnfinished) {
  MemoryDisk disk;
  {
    const auto journal = OpenIn(disk);
    JournaledRequest request(*journal, Request(journal->NewNumber()));
    request.Accepted("mine");
    request.End();
    EXPECT_FALSE(request.is_recorded());
  }
  EXPECT_THAT(ReadJournal(disk.bytes).unfinished, IsEmpty());
}

TEST(JournalTest, RequestsOfAnotherIdentityAreLeftOut) {
  MemoryDisk disk;
  disk.bytes = absl::StrCat(JournalHead("another model"), Encode(Request(4)));

  const auto journal = OpenIn(disk);

  EXPECT_THAT(journal->TakeUnfinished(), IsEmpty());
  EXPECT_EQ(ReadJournal(disk.bytes).identity, "model");
}

TEST(JournalTest, AnIdThatMetadataCannotHaveIsNotRecorded) {
  MemoryDisk disk;
  const auto journal = OpenIn(disk);
  JournaledRequest request(*journal, Request(1));
  request.Accepted("two words");
  EXPECT_FALSE(request.is_recorded());
}

TEST(JournalTest, AFileThatHasGrownIsMadeAnewWithWhatIsUnfinished) {
  MemoryDisk disk;
  {
    JournalOptions options = Options();
    options.file_bytes_min = 2000;
    const auto journal = OpenIn(disk, options);
    JournaledRequest open(*journal, Request(journal->NewNumber()));
    open.Accepted("open");
    for (int i = 0; i < 200; ++i) {
      JournaledRequest ended(*journal, Request(journal->NewNumber()));
      ended.Accepted("ended");
    }
    Await([&] { return disk.replaced > 1; });
    open.LeaveOpen();
  }
  const JournalContents contents = ReadJournal(disk.bytes);
  ASSERT_THAT(contents.unfinished, SizeIs(1));
  EXPECT_EQ(contents.unfinished[0].accepted.id, "open");
}

TEST(JournalTest, AFullDiskTurnsItOffAndRequestsGoOnWithout) {
  MemoryDisk disk;
  const auto journal = OpenIn(disk);
  JournaledRequest request(*journal, Request(journal->NewNumber()));
  request.Accepted("open");
  EXPECT_TRUE(request.is_recorded());
  disk.full = true;
  request.Committed(Output({Token(1)}));
  Await([&] { return disk.removed.load(); });

  EXPECT_FALSE(journal->on());
  EXPECT_FALSE(request.is_recorded());
  request.Committed(Output({Token(2)}));
}

TEST(JournalTest, MoreThanTheQueueTakesTurnsItOff) {
  MemoryDisk disk;
  JournalOptions options = Options();
  options.queue_bytes_max = 10;
  const auto journal = OpenIn(disk, options);
  JournaledRequest request(*journal, Request(journal->NewNumber()));
  request.Accepted("open");

  EXPECT_FALSE(journal->on());
  Await([&] { return disk.removed.load(); });
}

class JournalFileTest : public ::testing::Test {
 protected:
  void TearDown() override {
    MakeJournalFile(path_)->Remove();
    unlink(absl::StrCat(path_, ".lock").c_str());
  }

  const std::string path_ = absl::StrCat(testing::TempDir(), "/journal_test.", getpid());
};

TEST_F(JournalFileTest, AFileIsItsUsersAloneAndKeepsWhatIsAppended) {
  std::ofstream(path_) << "of before";
  const std::unique_ptr<JournalDisk> disk = MakeJournalFile(path_);
  EXPECT_EQ(disk->Read().value(), "of before");
  ASSERT_TRUE(disk->Replace("new").ok());
  ASSERT_TRUE(disk->Append(" and more").ok());
  ASSERT_TRUE(disk->Sync().ok());

  EXPECT_EQ(disk->Read().value(), "new and more");
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  disk->Remove();
  EXPECT_EQ(disk->Read().value(), "");
}

TEST_F(JournalFileTest, AFileIsOneCoordinatorsForAsLongAsThatRuns) {
  {
    const auto first = Journal::Open(MakeJournalFile(path_), Options());
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = Journal::Open(MakeJournalFile(path_), Options("another model"));
    EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(second.status().message()),
                AllOf(HasSubstr("coordinator.journal"), HasSubstr(path_),
                      HasSubstr("another coordinator")));
  }

  const auto next = Journal::Open(MakeJournalFile(path_), Options());

  EXPECT_TRUE(next.ok()) << next.status();
}

// A file that takes its place would be renamed over it.
TEST_F(JournalFileTest, ADeviceIsRefusedAndLeftWhereItIs) {
  ASSERT_EQ(symlink("/dev/null", path_.c_str()), 0);
  const auto journal = Journal::Open(MakeJournalFile(path_), Options());
  EXPECT_EQ(journal.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(journal.status().message()),
      AllOf(HasSubstr("coordinator.journal"), HasSubstr(path_), HasSubstr("no regular file")));
  struct stat status = {};
  ASSERT_EQ(lstat(path_.c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
}

TEST_F(JournalFileTest, AFolderThatIsNotThereIsNamed) {
  const auto journal = Journal::Open(MakeJournalFile("/nonexistent/journal"), Options());
  EXPECT_EQ(journal.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(journal.status().message()),
              AllOf(HasSubstr("coordinator.journal"), HasSubstr("/nonexistent/journal")));
}

}  // namespace
}  // namespace lamina::coordinator
