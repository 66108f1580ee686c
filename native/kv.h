// Keys and values of sequences, in blocks of 64 positions that sequences may share.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace ingle {

// Layers whose keys and values lie in the same blocks. A block holds, for each layer, the keys of each
// head, then the values of each head. Values of a head lie [64][dim]. Keys lie in four runs of 16
// positions, each [dim][16]: attention reads sixteen keys' worth of one dimension at a time.
struct KVShape {
  int layers, heads, dim;
  bool halves;  // bfloat16, else float32

  size_t head_bytes() const { return static_cast<size_t>(kKeyBlock) * dim * (halves ? 2 : 4); }
  size_t block_bytes() const { return 2 * layers * heads * head_bytes(); }
  size_t keys_at(int layer, int head) const { return (2L * layer * heads + head) * head_bytes(); }
  size_t values_at(int layer, int head) const { return keys_at(layer, head) + heads * head_bytes(); }
  bool operator==(const KVShape&) const = default;
};

// 64 positions of one sequence. Whole blocks never change; a block that is being filled has one owner.
class KVBlock : public std::enable_shared_from_this<KVBlock> {
 public:
  explicit KVBlock(const KVShape& shape);
  ~KVBlock();
  KVBlock(const KVBlock&) = delete;
  KVBlock& operator=(const KVBlock&) = delete;

  const KVShape& shape() const { return shape_; }
  size_t nbytes() const { return shape_.block_bytes(); }
  char* data() const { return data_; }

  static size_t live_bytes();  // of all blocks in this process
  static size_t peak_bytes();  // since `reset_peak`
  static void reset_peak();

 private:
  KVShape shape_;
  char* data_;
};

using KVBlocks = std::vector<std::shared_ptr<KVBlock>>;

// One sequence's blocks, and which positions they hold. Not thread-safe.
class KVTable : public std::enable_shared_from_this<KVTable> {
 public:
  explicit KVTable(const KVShape& shape) : shape_(shape) {}

  // Blocks from elsewhere, the first of them at block number `first`. They stay as they are.
  KVTable(const KVShape& shape, int first, KVBlocks blocks);

  // Makes room to write positions [start, end), and lets blocks go that lie wholly before `needed`.
  // A shared block that would be written is copied first.
  void reserve(int needed, int start, int end);

  // Lets blocks go that lie wholly behind position `end`.
  void cut(int end);

  // Block `number`, to be shared: this table will not write to it again.
  std::shared_ptr<KVBlock> share(int number);

  // Takes an equal block in the place of its own.
  void replace(int number, std::shared_ptr<KVBlock> block);

  std::shared_ptr<KVTable> copy();  // sharing every block

  const KVShape& shape() const { return shape_; }
  int first() const { return first_; }
  int end() const { return first_ + static_cast<int>(blocks_.size()); }
  const KVBlocks& blocks() const { return blocks_; }

 private:
  size_t place(int number) const;  // throws std::invalid_argument: not held

  KVShape shape_;
  int first_ = 0;  // block number of blocks_[0]
  KVBlocks blocks_;
  std::vector<char> shared_;
};

// A table as a program reads and writes it: it keeps the blocks alive, whatever becomes of the table.
class KVSpan {
 public:
  explicit KVSpan(const KVTable& table) : shape_(table.shape()), first_(table.first()), held_(table.blocks()) {
    for (const auto& block : held_) data_.push_back(block->data());
  }

  const KVShape& shape() const { return shape_; }
  int base() const { return first_ * kKeyBlock; }  // the first position held
  int end() const { return base() + static_cast<int>(data_.size()) * kKeyBlock; }
  const char* const* blocks() const { return data_.data(); }
  void write(const Kernels& kernels, int layer, int head, int position, const float* key, const float* value) const;

 private:
  KVShape shape_;
  int first_;
  KVBlocks held_;
  std::vector<char*> data_;
};

}  // namespace ingle
