#include "kv.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "phases.h"

namespace ingle {
namespace {

std::atomic<size_t> live{0}, peak{0};

}  // namespace

KVBlock::KVBlock(const KVShape& shape) : shape_(shape) {
  data_ = static_cast<char*>(std::aligned_alloc(64, (nbytes() + 63) / 64 * 64));
  if (!data_) throw std::bad_alloc();
  const size_t now = live.fetch_add(nbytes()) + nbytes();
  for (size_t most = peak.load(); now > most && !peak.compare_exchange_weak(most, now);) {
  }
}

KVBlock::~KVBlock() {
  std::free(data_);
  live.fetch_sub(nbytes());
}

size_t KVBlock::live_bytes() { return live.load(); }
size_t KVBlock::peak_bytes() { return peak.load(); }
void KVBlock::reset_peak() { peak.store(live.load()); }

KVTable::KVTable(const KVShape& shape, int first, KVBlocks blocks)
    : shape_(shape), first_(first), blocks_(std::move(blocks)), shared_(blocks_.size(), 1) {
  if (first < 0) throw std::invalid_argument("a table cannot begin at block " + std::to_string(first));
  for (const auto& block : blocks_)
    if (block->shape() != shape_) throw std::invalid_argument("a block has another shape than the table");
}

void KVTable::reserve(int needed, int start, int end) {
  if (needed < 0 || start < needed || end < start || (!blocks_.empty() && start > this->end() * kKeyBlock))
    throw std::invalid_argument("cannot reserve positions " + std::to_string(start) + " to " + std::to_string(end) +
                                " of a table that ends at " + std::to_string(this->end() * kKeyBlock));
  if (start / kKeyBlock < first_) throw std::invalid_argument("position " + std::to_string(start) + " is gone");
  const int drop = std::min<int>(needed / kKeyBlock - first_, static_cast<int>(blocks_.size()));
  if (drop > 0) {
    blocks_.erase(blocks_.begin(), blocks_.begin() + drop);
    shared_.erase(shared_.begin(), shared_.begin() + drop);
    first_ += drop;
  }
  if (blocks_.empty()) first_ = std::max(first_, needed / kKeyBlock);
  for (int number = start / kKeyBlock; number < this->end(); ++number) {
    const size_t i = number - first_;
    if (!shared_[i]) continue;
    auto own = std::make_shared<KVBlock>(shape_);
    std::memcpy(own->data(), blocks_[i]->data(), own->nbytes());
    blocks_[i] = std::move(own), shared_[i] = 0;
  }
  while (this->end() * kKeyBlock < end) {
    blocks_.push_back(std::make_shared<KVBlock>(shape_));
    shared_.push_back(0);
  }
}

void KVTable::cut(int end) {
  const int keep = std::max(0, (end + kKeyBlock - 1) / kKeyBlock - first_);
  if (keep >= static_cast<int>(blocks_.size())) return;
  blocks_.resize(keep);
  shared_.resize(keep);
}

size_t KVTable::place(int number) const {
  if (number < first_ || number >= end())
    throw std::invalid_argument("block " + std::to_string(number) + " is not held, only " + std::to_string(first_) + " to " +
                                std::to_string(end() - 1));
  return number - first_;
}

std::shared_ptr<KVBlock> KVTable::share(int number) {
  const size_t i = place(number);
  shared_[i] = 1;
  return blocks_[i];
}

void KVTable::replace(int number, std::shared_ptr<KVBlock> block) {
  if (block->shape() != shape_) throw std::invalid_argument("a block has another shape than the table");
  const size_t i = place(number);
  blocks_[i] = std::move(block), shared_[i] = 1;
}

std::shared_ptr<KVTable> KVTable::copy() {
  std::fill(shared_.begin(), shared_.end(), 1);
  return std::make_shared<KVTable>(shape_, first_, blocks_);
}

void KVSpan::write(const Kernels& kernels, int layer, int head, int position, const float* key,
                   const float* value) const {
  char* block = data_[position / kKeyBlock - first_];
  const int column = position % kKeyBlock, dim = shape_.dim;
  const long k = static_cast<long>(column / kBlock) * kBlock * dim + column % kBlock, v = static_cast<long>(column) * dim;
  char *keys = block + shape_.keys_at(layer, head), *values = block + shape_.values_at(layer, head);
  if (shape_.halves) {
    kernels.to_bf16(value, dim, reinterpret_cast<unsigned short*>(values) + v);
    auto* rounded = reinterpret_cast<unsigned short*>(thread_scratch(dim));
    kernels.to_bf16(key, dim, rounded);
    for (int d = 0; d < dim; ++d) reinterpret_cast<unsigned short*>(keys)[k + d * kBlock] = rounded[d];
  } else {
    for (int d = 0; d < dim; ++d) reinterpret_cast<float*>(keys)[k + d * kBlock] = key[d];
    std::copy(value, value + dim, reinterpret_cast<float*>(values) + v);
  }
}

}  // namespace ingle
