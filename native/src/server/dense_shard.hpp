#pragma once

#include "record/recorded_pulls.hpp"
#include "ring/dense_view.hpp"
#include "server/array.hpp"
#include "server/common_copy.hpp"
#include "server/shard.hpp"
#include "shm/store_choice.hpp"

namespace mpips {

// A contiguous range of a dense tensor: float32 values in versioned blocks, and the optimizer's
// state, all in the server's region.
class DenseShard : public Shard {
 public:
  DenseShard(std::uint8_t* region, const DenseExtent& extent, Rule rule, std::size_t n_workers,
             Progress progress, const Durable& durable);

  // Return the bytes of the shared-memory file for this shard's buffers, with a journal.
  static std::size_t buffer_bytes(std::size_t n, std::size_t n_workers) noexcept;
  BufferWords buffer_words(std::size_t number) const noexcept override;
  void set_buffer_words(std::size_t number, const BufferWords& words) override;
  void take_over() override;

  bool store(std::size_t slot, std::uint64_t offset, const float* values, std::size_t n) override;
  bool accepts(const Update& part) const noexcept override;
  bool ends_push(const Update& part, bool last) const noexcept override;
  void assemble(std::size_t worker, const Update& part, bool first) override;
  Update whole(std::size_t worker) const override;
  void apply(const Update& update, const Weight& weight, std::uint64_t step) override;
  void accumulate(std::size_t buffer, const Update& part) override;
  bool apply_accumulated(const std::vector<std::size_t>& buffers, const Weight& weight,
                         std::uint64_t step) override;
  void discard(std::size_t buffer) override;
  void set_far(bool far) noexcept override { stores_.set_far(far); }
  OpenSum open_sum() const noexcept override {
    return sum() != nullptr ? OpenSum{n_, 1, nullptr, sum()} : OpenSum{};
  }
  std::size_t memory_bytes() const override;

  // Encode the image of all values for pulls, if there is one, or copy them to the common copy.
  // Call it after values were set from outside.
  void refresh_image() noexcept;
  // Return the common copy of the values; null: there is none. It is set like a state behind those
  // of the rule.
  // Let `gate` hold back changes of a block's values. `table`: index of this shard's table.
  void set_gate(PullGate* gate, std::size_t table) noexcept {
    gate_ = gate;
    gated_table_ = table;
  }
  CommonCopy* common() const noexcept { return common_.get(); }
  float* values() const noexcept { return values_; }
  std::size_t n_state() const noexcept { return python_state_.size() + (common_ ? 1 : 0); }
  float* state(std::size_t slot) const noexcept {
    return slot < python_state_.size() ? python_state_[slot] : common_->values();
  }
  std::size_t size() const noexcept { return n_; }

 protected:
  // Return buffer 0 of the open clock, with zeros if it is empty.
  float* opened_sum();
  // The same, null if it is empty.
  const float* sum() const noexcept {
    return accumulator_[0].used ? accumulator_[0].update.data() : nullptr;
  }

 private:
  struct Buffer {
    Array<float> update, base;
    bool used = false;       // assembly: there are base values; accumulator: not empty
    std::size_t filled = 0;  // accumulator: elements copied of the clock's first push
  };

  void apply_block(std::size_t block, const Update& update, UpdateArgs* args, float lambda);
  void apply_logged(std::size_t block, const Update& update, UpdateArgs* args, float lambda,
                    std::uint64_t part);
  void change_logged(std::size_t from, std::size_t count, const float* gradient,
                     const UpdateArgs& args, std::uint64_t part);
  const float* compensated(std::size_t from, std::size_t count, const Update& update, float lambda);
  void change(std::size_t from, std::size_t count, const float* gradient, const UpdateArgs& args);
  void encode_image(std::size_t block) noexcept;
  void add_to(Array<float>* sum, std::size_t offset, const float* values, std::size_t count);
  void apply_python(const Update& update, const Weight& weight, std::uint64_t step);

  std::size_t n_;
  PairWord* versions_;
  float* values_;
  DenseExtent extent_;
  std::uint8_t* image_;                 // null: pulls read the values
  std::unique_ptr<CommonCopy> common_;  // null: pulls do not read differences
  std::array<float*, 2> state_{};
  std::vector<float*> python_state_;
  Progress progress_;
  std::vector<Buffer> assembly_;     // by worker: pushes larger than a record
  std::vector<Buffer> accumulator_;  // by buffer: the sum of a clock
  std::vector<float> scratch_;
  StoreChoice stores_;  // of values, which workers read
  Durable durable_;
  PullGate* gate_ = nullptr;  // null: no replay
  std::size_t gated_table_ = 0;
};

}  // namespace mpips
