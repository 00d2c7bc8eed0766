#pragma once

#include <deque>

#include "keys/initializer.hpp"
#include "keys/row_map.hpp"
#include "ring/layout.hpp"
#include "server/array.hpp"
#include "server/row_limits.hpp"
#include "server/row_storage.hpp"
#include "server/shard.hpp"
#include "shm/shared_memory.hpp"

namespace mpips {

// The type of the stored values of a row; bf16 has the upper half of the bits of a float32.
enum class RowDtype : std::uint8_t { float32, bf16 };
constexpr const char* row_dtype_names[] = {"float32", "bf16"};  // by RowDtype

// The rows of an embedding table whose keys this server owns. A row has its values, the optimizer's
// states, the state that a rule has for the whole row, and a count of the row's updates if the rule
// or the dtype needs one, one after the other. All but values of bf16 are words of 32 bits. The
// content of a row is the same with values as float32. A row is made when it is first pushed. A
// pull of a key without a row returns its initial value.
//
// A push in several records is applied in one of two ways. `assemble` copies its parts until all of
// them are there. `expect` leaves the parts where they lie (in the ring) and only looks up their
// rows, while the worker writes the rest; when all parts are there, `make_expected` and one
// `apply_expected` per part follow. In both ways nothing changes before all parts are there.
class EmbeddingShard final : public Shard {
 public:
  EmbeddingShard(SharedMemory rows, SharedMemory keys, std::size_t dim, RowDtype dtype, Rule rule,
                 Initializer initializer, std::size_t n_workers, Progress progress,
                 const Durable& durable);

  BufferWords buffer_words(std::size_t number) const noexcept override;
  void set_buffer_words(std::size_t number, const BufferWords& words) override;
  void take_over() override;

  bool store(std::size_t, std::uint64_t, const float*, std::size_t) override { return false; }
  bool accepts(const Update& part) const noexcept override;
  bool ends_push(const Update&, bool last) const noexcept override { return last; }
  void assemble(std::size_t worker, const Update& part, bool first) override;
  Update whole(std::size_t worker) const override;
  void apply(const Update& update, const Weight& weight, std::uint64_t step) override;
  void accumulate(std::size_t buffer, const Update& part) override;
  bool apply_accumulated(const std::vector<std::size_t>& buffers, const Weight& weight,
                         std::uint64_t step) override;
  void discard(std::size_t buffer) override;
  OpenSum open_sum() const noexcept override {
    const Buffer& sum = accumulator_[0];
    return {sum.n, dim_, sum.keys.data(), sum.values.data()};
  }
  std::size_t memory_bytes() const override;

  // False if a rule must see all rows of a push at once.
  bool applies_by_parts() const noexcept { return !rule_.python && storage_ == nullptr; }
  void expect(std::size_t worker, const Update& part);
  // Make the rows of all parts. Memory is reserved first: if there is not enough, nothing has
  // changed.
  void make_expected(std::size_t worker, const std::vector<Update>& parts);
  void apply_expected(std::size_t worker, const Update& part, const Weight& weight,
                      std::uint64_t step);

  // Store rows of this content; make the new ones. Values that bf16 does not have are rounded to
  // the nearest.
  void load(const std::int64_t* keys, std::size_t n, const float* rows);
  // Replace the values of rows; make the new ones, whose state begins as after a first push.
  void set(const std::int64_t* keys, std::size_t n, const float* values);
  // Copy the values of rows to `out`. `past`: store them past the caches; only if gathers_rows().
  void pull(const std::int64_t* keys, std::size_t n, float* out, bool past = false);
  // True if a pull copies rows of float32 and does nothing else.
  bool gathers_rows() const noexcept {
    return !has_uses() && storage_ == nullptr && dtype_ == RowDtype::float32;
  }
  // Copy the values of rows, and the initial ones of keys without a row, which has[i] = 0 marks.
  // Changes nothing; `rows`: scratch memory.
  void look_up(const std::int64_t* keys, std::size_t n, float* out, std::uint8_t* has,
               std::vector<std::uint32_t>* rows) const;
  // Copy floats [from, from + n) of the content of a row. Throws StorageError if it lies in a file
  // that cannot be read.
  void read(std::size_t index, std::size_t from, std::size_t n, float* out) const;

  // Set the version that the table will have with the next update.
  void set_next_version(std::uint64_t version) noexcept { next_version_ = version; }
  // BSP: set out[i] = 1 if the row of keys[i] may have changed after version `since`, else 0.
  // `now`: the table's version. From the first call on the shard notes when it changes a row; what
  // it does not know, for example after a restart, counts as a change at the first call.
  void find_changes(const std::int64_t* keys, std::size_t n, std::uint64_t since, std::uint64_t now,
                    float* out);

  // Lists of changes (embedding_changes.cpp), under any consistency model. From the first call on
  // the shard notes when it changes or removes a row. `now`: the table's version.
  void note_changes_from(std::uint64_t now);
  // Write the rows that have changed after a version, or the keys of rows that have left the table
  // since then and have not come back, as ChangesPayload describes; at most `most` of them and
  // those of some ten thousand places. Return their number; `head` gets all but the table's
  // version.
  std::size_t list_changed(const ChangesPayload& what, std::size_t most, std::uint8_t* out,
                           ChangesHead* head) const;
  std::size_t list_removed(const ChangesPayload& what, std::size_t most, std::uint8_t* out,
                           ChangesHead* head) const;

  // Limits of the rows (embedding_limits.cpp), only under BSP and without backup workers. Set them
  // before any row is made. `uses` and `counts`: see RowLimits; the shard owns them.
  void set_limits(const LimitsConfig& config, std::unique_ptr<SharedMemory> uses,
                  std::unique_ptr<SharedMemory> counts, TableStats* stats);
  bool has_limits() const noexcept { return limits_ != nullptr; }
  // Set the clock of the run at which values are read or changed next.
  void set_clock(std::uint64_t clock) noexcept { limits_->now = clock; }
  // Remove rows that have left the table, for about `max_s` seconds, 0: all of them. Return true
  // if there are more. Call it only while no operation of the journal is active.
  bool remove_rows(double max_s);
  // Remove all rows that are not to be seen at the present clock, and give memory back.
  void settle();
  // Store the use of rows that `load` has made: their last clock, and the number of clocks.
  void set_uses(const std::int64_t* keys, std::size_t n, const std::uint32_t* last,
                const std::uint32_t* count);
  // The same of all rows, in the order of `keys`: pairs. Only with eviction.
  const std::uint32_t* uses() const noexcept {
    return reinterpret_cast<const std::uint32_t*>(use_memory_->data());
  }
  bool has_uses() const noexcept { return limits_ != nullptr && limits_->evicts(); }

  // Let some of the rows lie in a file (embedding_stored.cpp). Call it before any row is made.
  void set_storage(std::unique_ptr<RowStorage> storage) { storage_ = std::move(storage); }
  // Null: all rows lie in memory.
  RowStorage* storage() const noexcept { return storage_.get(); }

  std::size_t dim() const noexcept { return dim_; }
  std::size_t n_rows() const noexcept { return map_.size(); }
  // floats of a stored row, and of the content of a row
  std::size_t stride() const noexcept { return stride_; }
  std::size_t content_floats() const noexcept { return stride_ - value_floats_ + dim_; }
  const std::int64_t* keys() const noexcept {
    return reinterpret_cast<const std::int64_t*>(key_memory_.data());
  }
  const float* row(std::size_t index) const noexcept {
    return reinterpret_cast<const float*>(row_memory_.data()) + index * stride_;
  }

 private:
  struct Buffer {
    std::size_t n = 0;
    Array<std::int64_t> keys;
    Array<float> values, base;
    bool has_base = false;
    RowMap index;
  };

  float* row(std::size_t index) noexcept {
    return reinterpret_cast<float*>(row_memory_.data()) + index * stride_;
  }
  void take_memory(std::size_t n_new);
  void find_rows(const std::int64_t* keys, std::size_t n);
  void find_or_make(const std::int64_t* keys, std::size_t n, std::uint32_t* rows);
  template <int for_writing>
  void prefetch(std::uint32_t index, std::size_t n_lines) const noexcept;
  void apply_rows(const std::uint32_t* rows, const Update& update, const Weight& weight,
                  std::uint64_t step);
  void make_rows(const std::int64_t* keys, std::size_t n, const std::uint32_t* rows,
                 std::size_t first_new);
  void apply_logged(const std::uint32_t* rows, const Update& update, const Weight& weight,
                    std::uint64_t step);
  void apply_whole(const std::uint32_t* rows, const Update& update, const Weight& weight,
                   std::uint64_t step);
  void change_whole(float* row, std::int64_t key, const float* update, const float* base,
                    float lambda, UpdateArgs* args);
  void store_values(const float* values, float* row) noexcept;
  void make_initial(std::int64_t key, float* out) const noexcept;
  bool one_by_one(const Update& update, float lambda) const noexcept;
  RowsToChange rows_of(const std::uint32_t* rows, const Update& update, std::size_t from) noexcept;
  void change_logged(LoggedUpdateFn change, float* row, std::size_t from, std::size_t to,
                     const float* gradient, const UpdateArgs& args, std::uint64_t at);
  const float* compensated(const float* row, const float* update, const float* base, float lambda);
  std::uint32_t steps_of(const float* row) const noexcept;
  std::uint32_t count_step(float* row) const noexcept;
  void note_changes(const Update& update);
  void note_removal(std::int64_t key);
  void apply_python(const Update& update, const Weight& weight, std::uint64_t step);
  void add(Buffer* sum, const std::int64_t* keys, const float* values, std::size_t n);
  void add_units(Buffer* sum, std::size_t before, const float* values, std::size_t n);

  void take_frames(std::size_t n_new);
  void find_stored(const std::int64_t* keys, std::size_t n);
  void apply_stored(const Update& update, const Weight& weight, std::uint64_t step);
  void pull_stored(const std::int64_t* keys, std::size_t n, float* out);
  const float* content_of(std::size_t index) const;
  void read_content(const float* row, std::size_t from, std::size_t n, float* out) const noexcept;

  void apply_limited(const Update& update, const Weight& weight, std::uint64_t step);
  Update admitted(const Update& update);
  void make_admitted(const Update& taken);
  void apply_runs(const Update& update, const Update& taken, const Weight& weight,
                  std::uint64_t step);
  void note_pushed(const Update& update, std::size_t n_before);
  void reset_row(std::size_t index, std::int64_t key);
  void add_to_sets(std::size_t n_before);
  void pull_limited(const std::int64_t* keys, std::size_t n, float* out);
  void make_room_in(const std::int64_t* keys, std::size_t n);
  void choose_leaving(std::size_t set);
  void remove_leaving();
  void remove_row(std::int64_t key);
  bool is_changed(std::uint32_t row, std::uint64_t since, std::uint64_t now) const noexcept;
  void finish_move();
  void take_over_limits();
  void note_loaded(std::size_t n_before);
  void give_back();

  std::size_t dim_, value_floats_, stride_;
  std::size_t row_state_;  // place of the rule's state of the whole row, if it has one
  RowDtype dtype_;
  bool changes_whole_;  // rows are changed by apply_whole
  // lines to prefetch per row, and how many rows ahead
  std::size_t row_lines_, value_lines_, ahead_;
  bool counts_steps_;  // a row has a count of its updates
  SharedMemory row_memory_, key_memory_;
  RowMap map_;
  Initializer initializer_;
  Progress progress_;
  std::vector<Buffer> assembly_, accumulator_;
  std::vector<std::vector<std::uint32_t>> expected_;  // by worker: row of each key, or npos
  std::vector<std::uint32_t> rows_;
  // The version with which each row changed last; empty until the first `find_changes`. It is
  // process memory: only workers of the same launch ask, and they hold no rows when a launch
  // begins.
  std::vector<std::uint64_t> changed_;
  bool notes_changes_ = false;
  // The rows that were removed since the first list of changes, oldest first. The oldest ones are
  // forgotten when there are more of them than rows; then only changes after `known_` are known.
  struct Removal {
    std::uint64_t version;
    std::int64_t key;
  };
  std::deque<Removal> removals_;
  std::uint64_t first_removal_ = 0;  // number of the oldest one
  std::uint64_t known_ = 0;
  std::uint64_t marks_ = 0;  // random number of these marks; 0: no list of changes was asked for
  std::uint64_t next_version_ = 0;
  std::vector<float> scratch_, widened_;
  Durable durable_;
  // Null: every key that is pushed gets a row, which stays.
  std::unique_ptr<SharedMemory> use_memory_, count_memory_;
  std::unique_ptr<RowLimits> limits_;
  // Null: all rows lie in memory. Else rows have frames there; after a search `rows_` has those of
  // the keys, and `numbers_` the numbers of their rows.
  std::unique_ptr<RowStorage> storage_;
  std::vector<std::uint32_t> numbers_;
  mutable std::vector<float> content_;
  TableStats* stats_ = nullptr;
  std::vector<std::int64_t> admitted_keys_;
  std::vector<float> admitted_values_;
};

}  // namespace mpips
