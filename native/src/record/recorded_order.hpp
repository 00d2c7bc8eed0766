#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "record/order_log.hpp"

// The recorded order of a server's records, which a replaying server follows.
namespace mpips {

struct OrderEntry {
  std::size_t worker;
  RecordKind kind;
  Outcome outcome;
  std::uint16_t table;  // 0 where the kind has none
  std::uint64_t clock;
  std::uint64_t staleness;  // of a judged push
  std::uint8_t digest;      // of a push

  // Return true if the record changed the values of its table when it was consumed.
  bool writes() const noexcept { return is_judged(outcome) && outcome != Outcome::rejected; }
};

class RecordedOrder {
 public:
  // `bytes`: what an OrderLog has written, all of it. `names`: of the tables.
  RecordedOrder(std::vector<std::uint8_t> bytes, std::size_t n_workers,
                std::vector<std::string> names);
  RecordedOrder(const RecordedOrder&) = delete;
  RecordedOrder& operator=(const RecordedOrder&) = delete;

  // Return the entry whose record is consumed next; null: the record of the run is over. Records of
  // cuts are left out: a replay takes no checkpoints.
  const OrderEntry* next() const noexcept { return over_ ? nullptr : &next_; }
  std::uint64_t consumed() const noexcept { return consumed_; }
  // Throw RecordDifference if a worker's record is not the next one. `payload`: of a push. A record
  // is checked once, however often the server looks at it before it can consume it.
  void check(const RecordHeader& h, const std::uint8_t* payload, std::size_t payload_bytes);
  bool is_checked() const noexcept { return is_checked_; }
  // Throw RecordDifference if the server decided otherwise on the next record, and go on.
  void pass(Outcome outcome);

 private:
  void find_next();
  std::string described(RecordKind kind, std::size_t table, std::uint64_t clock) const;

  std::vector<std::uint8_t> bytes_;
  VarintReader reader_;
  std::vector<std::string> names_;
  std::vector<OrderPlace> places_;
  std::vector<PayloadDigest> digests_;
  OrderEntry next_{};
  bool over_ = false, is_checked_ = false;
  std::uint64_t consumed_ = 0;
};

}  // namespace mpips
