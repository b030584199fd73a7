// Cuts products into blocks for the threads. The cuts follow from the sizes alone, and no sum is ever cut.
#include "kernels/matrix.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/checks.h"
#include "base/thread_object.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/weights.h"
#include "kvasir/matrix.h"

namespace kvasir {
namespace {

// Rows that a block takes at once: at depth 1024, what half of a second-level cache holds.
constexpr int64_t kBlockRows = 64;
// Products worth handing to another thread: some tens of microseconds.
constexpr int64_t kBlockProducts = 1 << 18;
// A multiple of every backend's columns of a tile and of a panel.
constexpr int64_t kColumnStep = 96;
// Elements worth handing to another thread to encode.
constexpr int64_t kEncodedElements = 1 << 16;

void check_size(const char* what, int64_t value) {
  if (value < 1) refuse(std::string(what) + " must be 1 or more, not " + std::to_string(value));
}

int64_t blocks_of(int64_t size, int64_t block) { return (size - 1) / block + 1; }

// run_product's arguments.
struct Product {
  const float* a;
  const uint8_t* b;
  WeightType type;
  int64_t row_bytes;
  const float* bias;
  int64_t rows, columns, depth;
  float* out;
};

// The activations of a product, in one of the ways that kernels take them.
struct Activations {
  const CodedPart* coded = nullptr;
  const uint16_t* pairs = nullptr;
};

void run_blocks(const Product& product, const Activations& in, void (*kernel)(const MatrixBlock&)) {
  const int64_t rows = product.rows, columns = product.columns, depth = product.depth;
  // Weights are unpacked or laid out for all rows of a block: it takes all there are.
  const int64_t block_rows = in.coded || in.pairs ? rows : std::min(rows, kBlockRows);
  // Not block_rows * depth: depth may be anything up to 2^61.
  const int64_t fitting = kBlockProducts / std::min(kBlockProducts, depth) / block_rows;
  const int64_t block_columns =
      std::max<int64_t>(1, blocks_of(std::max<int64_t>(1, fitting), kColumnStep)) * kColumnStep;
  const int64_t column_blocks = blocks_of(columns, block_columns);
  const int64_t tasks = checked_multiply(blocks_of(rows, block_rows), column_blocks, "blocks");
  if (tasks > INT32_MAX) refuse("a product of " + std::to_string(tasks) + " blocks");
  ThreadPool::shared().run(static_cast<int>(tasks), [&](int task) {
    const int64_t row = task / column_blocks * block_rows;
    const int64_t column = task % column_blocks * block_columns;
    MatrixBlock block = {};
    block.a = product.a + row * depth;
    block.coded = in.coded;
    block.pairs = in.pairs;
    block.rows = std::min(block_rows, rows - row);
    block.b = product.b + column * product.row_bytes;
    block.type = product.type;
    block.row_bytes = product.row_bytes;
    block.columns = std::min(block_columns, columns - column);
    block.depth = depth;
    block.bias = product.bias ? product.bias + column : nullptr;
    block.out = product.out + row * columns + column;
    block.stride = columns;
    kernel(block);
  });
}

// The rows of product.a as codes, valid until the thread's next call: it keeps the memory.
const CodedPart* encode_rows(const MatrixKernels& kernels, const Product& product) {
  struct Codes;
  auto& memory = thread_object<Codes, std::vector<CodedPart>>();
  const int64_t depth = product.depth, rows = product.rows, parts = blocks_of(depth, kCodedDepth);
  const auto size = static_cast<size_t>(rows * parts + kSpareRows);
  if (memory.size() < size) memory.resize(size);
  CodedPart* const to = memory.data();  // of this thread, whichever runs the task
  const int64_t task_rows = std::max<int64_t>(1, kEncodedElements / depth);
  ThreadPool::shared().run(static_cast<int>(blocks_of(rows, task_rows)), [&](int task) {
    for (int64_t r = task * task_rows; r < std::min(rows, (task + 1) * task_rows); ++r) {
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t begin = p * kCodedDepth;
        const int count = static_cast<int>(std::min<int64_t>(kCodedDepth, depth - begin));
        kernels.encode(product.a + r * depth + begin, count, to + p * rows + r);
      }
    }
  });
  return to;
}

// The rows of product.a as pairs, valid until the thread's next call.
const uint16_t* split_rows(const MatrixKernels& kernels, const Product& product) {
  struct Pairs;
  auto& memory = thread_object<Pairs, std::vector<uint16_t>>();
  const int64_t depth = product.depth, rows = product.rows;
  const auto size = static_cast<size_t>(pair_offset(blocks_of(rows, kPairRows) * kPairRows, depth) + kPairDepth);
  if (memory.size() < size) memory.resize(size);
  auto* const to = reinterpret_cast<uint16_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const int64_t task_rows = std::max<int64_t>(1, kEncodedElements / depth);
  ThreadPool::shared().run(static_cast<int>(blocks_of(rows, task_rows)), [&](int task) {
    for (int64_t r = task * task_rows; r < std::min(rows, (task + 1) * task_rows); ++r) {
      kernels.split(product.a + r * depth, depth, to + pair_offset(r, depth));
    }
  });
  return to;
}

// From so great a depth on pairs keep what float32 promises: they are off by 256 of its roundings, and sums in tiles by
// depth / 16 + 34 at most.
constexpr int64_t kLeastPairDepth = 320;

}  // namespace

int64_t checked_row_bytes(WeightType type, int64_t depth) {
  const WeightLayout* layout = find_layout(type);
  if (!layout) refuse("no weights of type " + std::to_string(static_cast<int>(type)));
  check_size("depth", depth);
  if (depth % layout->elements != 0) {
    refuse("rows of " + std::to_string(depth) + " weights, which are no whole blocks of " + layout->name + ": " +
           std::to_string(layout->elements));
  }
  return checked_multiply(depth / layout->elements, layout->bytes, "bytes of a row");
}

void run_product(const float* a, const uint8_t* b, WeightType type, const float* bias, int64_t rows, int64_t columns,
                 int64_t depth, bool pairs, float* out) {
  check_size("rows", rows);
  check_size("columns", columns);
  check_size("depth", depth);
  checked_multiply(checked_multiply(rows, columns, "rows times columns"), 2, "rows times columns");
  checked_multiply(checked_multiply(std::max(rows, columns), depth, "elements"), 2, "elements");
  const int64_t row_bytes = checked_row_bytes(type, depth);
  checked_multiply(columns, row_bytes, "bytes of weights");
  require_pointer("a", a);
  require_pointer("b", b);
  require_pointer("out", out);

  const Product product = {a, b, type, row_bytes, bias, rows, columns, depth, out};
  const MatrixKernels& kernels = resolve_matrix(backend_index("auto"));
  const bool paired = pairs && type == WeightType::kBF16 && kernels.pair_product && depth >= kLeastPairDepth;
  if (is_float(type) && !paired) {
    run_blocks(product, {}, kernels.product);
    return;
  }
  for (int64_t row = 0; row < rows; row += kCodedRows) {
    Product part = product;
    part.a += row * depth;
    part.out += row * columns;
    part.rows = std::min<int64_t>(kCodedRows, rows - row);
    if (paired) {
      run_blocks(part, {nullptr, split_rows(kernels, part)}, kernels.pair_product);
    } else {
      run_blocks(part, {encode_rows(kernels, part), nullptr}, kernels.block_product);
    }
  }
}

void matrix_product(const float* a, const float* b, const float* bias, int64_t rows, int64_t columns, int64_t depth,
                    float* out) {
  run_product(a, reinterpret_cast<const uint8_t*>(b), WeightType::kF32, bias, rows, columns, depth, false, out);
}

void matrix_product_bf16(const float* a, const uint16_t* b, const float* bias, int64_t rows, int64_t columns,
                         int64_t depth, float* out) {
  run_product(a, reinterpret_cast<const uint8_t*>(b), WeightType::kBF16, bias, rows, columns, depth, false, out);
}

void silu_product(const float* gates, int64_t rows, int64_t columns, float* out) {
  check_size("rows", rows);
  check_size("columns", columns);
  checked_multiply(checked_multiply(rows, columns, "rows times columns"), 4, "elements");
  require_pointer("gates", gates);
  require_pointer("out", out);
  const MatrixKernels& kernels = resolve_matrix(backend_index("auto"));
  // An element costs about as much as sixteen products.
  const int64_t block_rows = std::max<int64_t>(1, kBlockProducts / 16 / columns);
  const int64_t tasks = blocks_of(rows, block_rows);
  if (tasks > INT32_MAX) refuse("a product of " + std::to_string(tasks) + " blocks");
  ThreadPool::shared().run(static_cast<int>(tasks), [&](int task) {
    for (int64_t r = task * block_rows; r < std::min(rows, (task + 1) * block_rows); ++r) {
      kernels.silu_product(gates + 2 * r * columns, gates + (2 * r + 1) * columns, static_cast<size_t>(columns),
                           out + r * columns);
    }
  });
}

}  // namespace kvasir
