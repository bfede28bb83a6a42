// SPDX-License-Identifier: Apache-2.0
#include "compute_node/transfer_order.h"

#include <algorithm>

namespace lamina::compute_node {
namespace {

class OpOrder final : public TransferOrder {
 public:
  Transfers Of(absl::Span<const StowedLinear> linears,
               const std::optional<KvFeatures>& /*kv*/) const override {
    Transfers transfers;
    for (const StowedLinear& linear : linears) {
      transfers.parts.insert(transfers.parts.end(), linear.pieces.begin(), linear.pieces.end());
    }
    return transfers;
  }
};

// Bytes [from, end) of a piece.
StowedPiece Cut(const StowedPiece& piece, size_t from, size_t end) {
  return {.stored = piece.stored + from, .bytes = end - from, .at = piece.at + from};
}

class KvFirst final : public TransferOrder {
 public:
  Transfers Of(absl::Span<const StowedLinear> linears,
               const std::optional<KvFeatures>& kv) const override {
    if (!kv.has_value()) {
      return OpOrder().Of(linears, kv);
    }
    Transfers transfers;
    std::vector<StowedPiece> queries;
    const StowedLinear& qkv = linears[kv->linear];
    for (size_t i = 0; i < qkv.pieces.size(); ++i) {
      const StowedPiece& piece = qkv.pieces[i];
      const size_t first = std::min(qkv.linear->FirstByte(i, kv->first), piece.bytes);
      Append(Cut(piece, first, piece.bytes), transfers.parts);
      Append(Cut(piece, 0, first), queries);
    }
    transfers.kv_parts = transfers.parts.size();
    transfers.parts.insert(transfers.parts.end(), queries.begin(), queries.end());
    for (size_t i = 0; i < linears.size(); ++i) {
      if (i != kv->linear) {
        transfers.parts.insert(transfers.parts.end(), linears[i].pieces.begin(),
                               linears[i].pieces.end());
      }
    }
    return transfers;
  }

 private:
  static void Append(const StowedPiece& piece, std::vector<StowedPiece>& parts) {
    if (piece.bytes > 0) {
      parts.push_back(piece);
    }
  }
};

}  // namespace

std::unique_ptr<TransferOrder> MakeOpOrder() { return std::make_unique<OpOrder>(); }

std::unique_ptr<TransferOrder> MakeKvFirst() { return std::make_unique<KvFirst>(); }

}  // namespace lamina::compute_node
