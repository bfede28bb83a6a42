// SPDX-License-Identifier: Apache-2.0
#include "control/blame.h"

#include <gtest/gtest.h>

#include "control/transport_fault.h"

namespace lamina::control {
namespace {

TEST(BlameTest, AnErrorKeepsTheNodeThatWasNamedFirst) {
  const absl::Status status = Blame(Blame(absl::InternalError("no answer"), "m0"), "c1");

  EXPECT_EQ(BlamedIn(status), "m0");
  EXPECT_EQ(status, Blame(absl::InternalError("no answer"), "m0"));
}

TEST(BlameTest, AnIndexBeyondTheNamesBlamesNobody) {
  const absl::Status status = absl::InternalError("no answer");

  EXPECT_EQ(BlamedIn(Blame(status, {"m0", "m1"}, 1)), "m1");
  EXPECT_EQ(BlamedIn(Blame(status, {"m0", "m1"}, 2)), "");
}

TEST(BlameTest, OkBlamesNobody) {
  EXPECT_TRUE(Blame(absl::OkStatus(), "m0").ok());
  EXPECT_EQ(BlamedIn(absl::OkStatus()), "");
}

TEST(BlameTest, AnErrorWithoutBlameNamesNobody) {
  EXPECT_EQ(BlamedIn(absl::InternalError("no answer")), "");
}

TEST(BlameTest, ATransportFaultKeepsItsBlame) {
  const absl::Status status = TransportFault(Blame(absl::UnavailableError("cut"), "m0"));

  EXPECT_TRUE(IsTransportFault(status));
  EXPECT_EQ(BlamedIn(status), "m0");
}

}  // namespace
}  // namespace lamina::control
