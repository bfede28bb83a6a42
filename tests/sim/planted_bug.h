// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <cstdint>

namespace lamina::sim {

// A bug put between the scheduler and the nodes, to see that the checkers bite.
enum class PlantedBug : uint8_t {
  kNone,
  kLeaveLost,        // A leave does not reach the nodes.
  kLeaveLate,        // A leave reaches the nodes a step later: as if quarantine ended a step early.
  kSlotGivenTwice,   // A decode row's allocation names the slot before the right one.
  kScratchShared,    // Every prompt is told to begin at 0 in the scratch.
  kPositionOff,      // A row is told the next position.
  kCommittedWrong,   // After a preemption, the last committed token is another one.
  kTokenStale,       // The nodes report the token of the step before once more.
  kTokenMissing,     // The nodes leave a token out.
  kPrefixTooLong,    // Behind a kept prefix, a prompt's rows begin one too late.
  kReleaseTooEarly,  // A sequence gives up slots that its next row still reads.
  kBeamsSwapped,     // A beam is told that it continues with another one's last token.
  kArenaWiped,       // A node says that it kept its slots over an epoch's end, and has not.
  kSpillNotAwaited,  // A node says that it wrote what it is only about to read from slots,
  kRestoreNotAwaited,   // or that it read what is not in slots yet.
  kSpanNotAwaited,      // All nodes with spans of a sequence but one say so too early.
  kPathOfAnother,       // A sequence joins a lane with the path of other lanes.
  kBareNotSaid,         // Tokens that others stored are said to have activations.
  kDropLost,            // Nodes are not told to forget what they have spilled.
  kFormOfAnother,       // A sequence is told to attend in slots of the other form,
  kSlotsOfOthers,       // or where path hybrid has slots of its own, lives in those of the others.
  kHomeOfAnother,       // A sequence lives on another replica than the one that runs its lane.
  kHoleLeft,            // Behind tokens that were kept, the first missing one is passed over.
  kCancelLost,          // The scheduler is not told that a client has gone.
  kSaltIgnored,         // Nor which salt a request has.
  kCachedMiscounted,    // Clients are told of a cached token too many.
  kTailShared,          // INT8: a sequence has its open block in the tail of another one.
  kTailsUncounted,      // A node has fewer tails than the scheduler counts on.
  kClosedTooEarly,      // INT8: a block is closed before its last token is there.
  kTailsWiped,          // A node says that it kept its tails over an epoch's end, and has not.
  kCopyNotAwaited,      // A node says that it wrote what it is only about to copy,
  kCopyReadNotAwaited,  // or that it read what it is about to read of a copy.
  kCopyShifted,         // A copy begins one slot before its blocks.
  kCopySkipLost,        // Copies are read from their first token on, of which some may be there.
  kCopyDropLost,        // Nodes are not told to forget copies.
  kDrainUnnoticed,      // The scheduler is not told that a memory node was drained,
  kDrainIsLoss,         // or that this was no loss.
  kAddedTooLarge,       // It takes an added memory node for twice as large as it is.
  kPlacesShared,        // All whose activations stay are told the first places for them.
  kSpanElsewhere,       // A sequence gets slots of the node behind that of its span.
  kTierTooSmall,        // A node's spill tier has fewer blocks than the scheduler counts on.
  kScoreOff,            // The nodes score a token by another value.
};

}  // namespace lamina::sim
