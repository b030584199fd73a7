// What a model needs on the device, against the definitions in double.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <random>

#include "check.h"
#include "kvasir/device_model.h"
#include "kvasir/error.h"
#include "reference/half.h"

namespace {

using kvasir::ElementType;
using kvasir::Precision;

constexpr Precision kPrecisions[] = {Precision::kFast, Precision::kExact};

// An array on the device, with a word behind it that must stay as it is.
template <class T>
class Array {
 public:
  explicit Array(size_t size) : size_(size) {
    CUDA(cudaMalloc(&memory_, size * sizeof(T) + 16));
    CUDA(cudaMemset(memory_, 0x5a, size * sizeof(T) + 16));
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    CUDA(cudaMemcpy(memory_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  operator void*() const { return memory_; }
  std::vector<T> read() const {
    std::vector<unsigned char> bytes(size_ * sizeof(T) + 16);
    CUDA(cudaMemcpy(bytes.data(), memory_, bytes.size(), cudaMemcpyDeviceToHost));
    for (size_t i = size_ * sizeof(T); i < bytes.size(); ++i) CHECK(bytes[i] == 0x5a, "written beyond the end");
    std::vector<T> values(size_);
    std::memcpy(values.data(), bytes.data(), size_ * sizeof(T));
    return values;
  }

 private:
  size_t size_;
  void* memory_ = nullptr;
};

std::vector<float> normal_rows(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// Random results of a product, and what they stand for.
struct Product {
  std::vector<double> values;
  std::vector<float> wide;       // kExact: two parts
  std::vector<uint16_t> narrow;  // kFast
};

Product product(unsigned seed, size_t count, Precision precision) {
  Product out;
  if (precision == Precision::kExact) {
    out.wide = normal_rows(seed, 2 * count);
    for (size_t i = 0; i < count; ++i) out.values.push_back(double{out.wide[i]} + out.wide[count + i]);
    return out;
  }
  for (const float x : normal_rows(seed, count)) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    out.narrow.push_back(static_cast<uint16_t>(bits >> 16));
    out.values.push_back(reference::bfloat_value(out.narrow.back()));
  }
  return out;
}

Array<unsigned char> upload(const Product& product) {
  const void* from = product.wide.empty() ? static_cast<const void*>(product.narrow.data()) : product.wide.data();
  std::vector<unsigned char> bytes(product.wide.size() * 4 + product.narrow.size() * 2);
  std::memcpy(bytes.data(), from, bytes.size());
  return Array<unsigned char>(bytes);
}

// What rows for a product stand for. `count` numbers.
std::vector<double> into(const Array<uint16_t>& rows, size_t count, Precision precision) {
  const auto bits = rows.read();
  std::vector<double> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = reference::bfloat_value(bits[i]);
    if (precision == Precision::kExact) out[i] += reference::bfloat_value(bits[count + i]);
  }
  return out;
}

size_t parts(Precision precision) { return precision == Precision::kExact ? 2 : 1; }

// bfloat16 has 8 bits: rounding to it is off by 2^-8 at most, to two of them by 2^-16 (a part of 2^-8, rounded to 2^-8
// of itself). Before that come float32 operations: `noise` of them at magnitude `size`.
void check_close(const std::vector<double>& found, const std::vector<double>& expected,
                 const std::vector<double>& sizes, Precision precision, double noise, const char* what) {
  const double step = precision == Precision::kExact ? 0x1p-16 : 0x1p-8;
  int wrong = 0;
  size_t first = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool good = std::fabs(found[i] - expected[i]) <= step * std::fabs(expected[i]) + noise * 0x1p-24 * sizes[i];
    if (!good && wrong++ == 0) first = i;
  }
  CHECK(wrong == 0, what << ": " << wrong << " of " << expected.size() << " wrong, the first at " << first << ": "
                         << found[first] << ", not " << expected[first]);
}

// out = x / sqrt(mean of squares + epsilon) * weight.
std::vector<double> normed(const std::vector<double>& in, const std::vector<float>& weight, double epsilon) {
  const size_t width = weight.size();
  std::vector<double> out(in.size());
  for (size_t r = 0; r < in.size() / width; ++r) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += in[r * width + i] * in[r * width + i];
    for (size_t i = 0; i < width; ++i) {
      out[r * width + i] = in[r * width + i] / std::sqrt(squares / static_cast<double>(width) + epsilon) * weight[i];
    }
  }
  return out;
}

std::vector<double> magnitudes(const std::vector<double>& values) {
  std::vector<double> out;
  for (const double x : values) out.push_back(std::fabs(x));
  return out;
}

DEVICE_CASE("model: embedding and gathering copy rows") {
  constexpr int kWidth = 80, kTable = 37;
  const std::vector<int> ids = {0, 36, 5, 5, 17};
  std::vector<uint16_t> weights(kTable * kWidth);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<uint16_t>(i * 7 % 0x7f80);
  const Array<int> there(ids);
  const Array<uint16_t> table(weights);
  const Array<float> rows(ids.size() * kWidth), again(ids.size() * kWidth);
  kvasir::device_embed(there, static_cast<int64_t>(ids.size()), table, kWidth, rows, nullptr);
  const std::vector<int> from = {4, 0, 2, 1, 1};
  const Array<int> order(from);
  kvasir::device_gather(rows, order, static_cast<int64_t>(from.size()), kWidth, again, nullptr);
  const auto found = rows.read(), gathered = again.read();
  int wrong = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int i = 0; i < kWidth; ++i) {
      wrong += found[t * kWidth + i] != reference::bfloat_value(weights[ids[t] * kWidth + i]);
      wrong += gathered[t * kWidth + i] != reference::bfloat_value(weights[ids[from[t]] * kWidth + i]);
    }
  }
  CHECK(wrong == 0, wrong);
}

// A float32 sum of squares is off by 2^-24 of itself for each link of its longest chain: 5 products of a thread, 5
// steps within a warp, 32 warps. Its root halves that; the scale and two products come on top: less than 28 in all.
DEVICE_CASE("model: sums and norms") {
  for (const Precision precision : kPrecisions) {
    for (const int width : {1, 48, 2048, 4099}) {
      for (const int rows : {1, 3}) {
        const size_t all = static_cast<size_t>(rows) * width;
        const auto state = normal_rows(1, all), weight = normal_rows(2, width), bias = normal_rows(3, width);
        const Product change = product(4, all, precision);
        const Array<unsigned char> changed = upload(change);
        const Array<float> there(state), by(weight), plus(bias);
        const Array<uint16_t> out(all * parts(precision));
        std::vector<double> before(state.begin(), state.end());
        kvasir::device_rms_norm(there, by, 1e-5, rows, width, precision, out, nullptr);
        const auto first = normed(before, weight, 1e-5);
        check_close(into(out, all, precision), first, magnitudes(first), precision, 28, "a norm");
        CHECK(there.read() == state, "a norm alone changes the state");

        for (const bool biased : {false, true}) {
          const Array<float> sum(state);
          kvasir::device_add(changed, biased ? static_cast<void*>(plus) : nullptr, sum, by, 1e-5, rows, width,
                             precision, out, nullptr);
          const auto found = sum.read();
          std::vector<double> expected, sizes;
          int wrong = 0;
          for (size_t i = 0; i < all; ++i) {
            const double added = biased ? bias[i % width] : 0.0;
            expected.push_back(before[i] + change.values[i] + added);
            sizes.push_back(std::fabs(before[i]) + 2 * std::fabs(change.values[i]) + 2 * std::fabs(added) + 4);
            wrong += !(std::fabs(found[i] - expected[i]) <= 3 * 0x1p-24 * sizes[i]);
          }
          CHECK(wrong == 0, wrong << " sums of " << all);
          const std::vector<double> exact(found.begin(), found.end());  // the norm is of what was stored
          const auto second = normed(exact, weight, 1e-5);
          check_close(into(out, all, precision), second, magnitudes(second), precision, 28, "a norm of a sum");
          const Array<float> alone(state);
          kvasir::device_add(changed, biased ? static_cast<void*>(plus) : nullptr, alone, nullptr, 0, rows, width,
                             precision, nullptr, nullptr);
          CHECK(alone.read() == found, "a sum without a norm is another");
        }
      }
    }
  }
}

struct HeadCase {
  int query_heads, kv_heads, head_dim;
  kvasir::RopePairs pairs;
  bool turn_keys, biased, normed;
};

void check_heads(const HeadCase& c, Precision precision) {
  constexpr int kRows = 5;
  const std::vector<int> positions = {0, 1, 127, 5000, 1000000};
  const int half = c.head_dim / 2, of_row = c.query_heads + 2 * c.kv_heads, width = of_row * c.head_dim;
  std::vector<double> frequencies;
  for (int j = 0; j < half; ++j) frequencies.push_back(std::pow(10000.0, -2.0 * j / c.head_dim));
  const Array<double> by(frequencies);
  const Array<int> where(positions);
  const Array<float> turns(static_cast<size_t>(kRows) * c.head_dim);
  kvasir::device_rope_turns(by, c.head_dim, 1.25, where, kRows, turns, nullptr);
  const auto angles = turns.read();
  int wrong = 0;
  for (int t = 0; t < kRows; ++t) {
    for (int j = 0; j < half; ++j) {
      const double angle = positions[t] * frequencies[j];
      wrong += !(std::fabs(angles[t * c.head_dim + j] - 1.25 * std::cos(angle)) < 1e-7);
      wrong += !(std::fabs(angles[t * c.head_dim + half + j] - 1.25 * std::sin(angle)) < 1e-7);
    }
  }
  CHECK(wrong == 0, wrong << " angles");

  const size_t all = static_cast<size_t>(kRows) * width;
  const Product in = product(5, all, precision);
  const Array<unsigned char> there = upload(in);
  const auto bias = normal_rows(6, width), query_norm = normal_rows(7, c.head_dim),
             key_norm = normal_rows(8, c.head_dim);
  const Array<float> plus(bias), query_by(query_norm), key_by(key_norm);
  const size_t query_count = static_cast<size_t>(kRows) * c.query_heads * c.head_dim;
  const size_t kv_count = static_cast<size_t>(kRows) * c.kv_heads * c.head_dim;
  const Array<uint16_t> queries(query_count * parts(precision)), keys(kv_count), values(kv_count);
  kvasir::device_heads(there, c.biased ? static_cast<void*>(plus) : nullptr,
                       c.normed ? static_cast<void*>(query_by) : nullptr,
                       c.normed ? static_cast<void*>(key_by) : nullptr, 1e-6, turns, kRows, c.query_heads, c.kv_heads,
                       c.head_dim, c.pairs, c.turn_keys, precision, queries, keys, values, nullptr);
  const auto q = queries.read(), k = keys.read(), v = values.read();
  std::vector<float> wide(query_count);
  if (precision == Precision::kExact) std::memcpy(wide.data(), q.data(), 4 * query_count);
  for (int t = 0; t < kRows; ++t) {
    for (int h = 0; h < of_row; ++h) {
      const bool query = h < c.query_heads, key = !query && h < c.query_heads + c.kv_heads;
      std::vector<double> head;
      for (int i = 0; i < c.head_dim; ++i) {
        head.push_back(in.values[(t * of_row + h) * c.head_dim + i] + (c.biased ? bias[h * c.head_dim + i] : 0.0));
      }
      if (c.normed && (query || key)) head = normed(head, query ? query_norm : key_norm, 1e-6);
      std::vector<double> turned = head;
      for (int j = 0; j < half && (query || (key && c.turn_keys)); ++j) {
        const int a = c.pairs == kvasir::RopePairs::kHalves ? j : 2 * j;
        const int b = c.pairs == kvasir::RopePairs::kHalves ? j + half : 2 * j + 1;
        const double angle = positions[t] * frequencies[j];
        turned[a] = 1.25 * (head[a] * std::cos(angle) - head[b] * std::sin(angle));
        turned[b] = 1.25 * (head[a] * std::sin(angle) + head[b] * std::cos(angle));
      }
      double size = 0;
      for (const double x : head) size = std::fmax(size, 2 * std::fabs(x));
      for (int i = 0; i < c.head_dim; ++i) {
        double found, step;
        const int kv = h - c.query_heads - (key ? 0 : c.kv_heads);
        if (query) {
          const size_t at = (static_cast<size_t>(t) * c.query_heads + h) * c.head_dim + i;
          found = precision == Precision::kExact ? double{wide[at]} : reference::bfloat_value(q[at]);
          step = precision == Precision::kExact ? 0x1p-24 : 0x1p-8;
        } else {
          const size_t at = (static_cast<size_t>(t) * c.kv_heads + kv) * c.head_dim + i;
          found = reference::half_value(key ? k[at] : v[at]);
          step = 0x1p-11;
        }
        // Subnormal float16 numbers are 2^-24 apart.
        wrong += !(std::fabs(found - turned[i]) <= step * std::fabs(turned[i]) + 24 * 0x1p-24 * (size + 8) + 0x1p-25);
      }
    }
  }
  CHECK(wrong == 0, wrong << " wrong of " << all << ", head dim " << c.head_dim);
}

DEVICE_CASE("model: heads are normed, turned and rounded") {
  using kvasir::RopePairs;
  for (const Precision precision : kPrecisions) {
    check_heads({8, 2, 128, RopePairs::kHalves, true, false, false}, precision);
    check_heads({3, 3, 64, RopePairs::kNeighbours, true, true, false}, precision);
    check_heads({5, 1, 96, RopePairs::kHalves, false, true, true}, precision);
    check_heads({4, 2, 256, RopePairs::kNeighbours, true, false, true}, precision);
  }
}

DEVICE_CASE("model: SwiGLU, and rows into and out of products") {
  for (const Precision precision : kPrecisions) {
    for (const int width : {1, 100, 5632}) {
      constexpr int kRows = 3;
      const size_t all = static_cast<size_t>(kRows) * width;
      Product in = product(9, 2 * all, precision);
      const auto bias = normal_rows(10, 2 * width);
      const Array<unsigned char> there = upload(in);
      const Array<float> plus(bias);
      for (const bool biased : {false, true}) {
        const Array<uint16_t> out(all * parts(precision));
        kvasir::device_swiglu(there, biased ? static_cast<void*>(plus) : nullptr, kRows, width, precision, out,
                              nullptr);
        std::vector<double> expected, sizes;
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < width; ++i) {
            const double gate = in.values[r * 2 * width + i] + (biased ? bias[i] : 0.0);
            const double up = in.values[r * 2 * width + width + i] + (biased ? bias[width + i] : 0.0);
            expected.push_back(gate / (1 + std::exp(-gate)) * up);
            sizes.push_back((std::fabs(gate) + 8) * (std::fabs(up) + 8));
          }
        }
        check_close(into(out, all, precision), expected, sizes, precision, 8, "SwiGLU");
      }
      std::vector<float> wide(all);
      const auto rows = normal_rows(11, all);
      const Array<float> from(rows);
      const Array<uint16_t> taken(all * parts(precision));
      kvasir::device_to_product(from, kRows, width, precision, taken, nullptr);
      const std::vector<double> expected(rows.begin(), rows.end());
      check_close(into(taken, all, precision), expected, expected, precision, 0, "rows into a product");
      const Array<float> back(2 * all);
      kvasir::device_from_product(there, 2 * kRows, width, precision, back, nullptr);
      const auto found = back.read();
      int wrong = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        wrong += !(std::fabs(found[i] - in.values[i]) <= 0x1p-24 * std::fabs(in.values[i]));
      }
      CHECK(wrong == 0, wrong << " rows from a product");
    }
  }
}

DEVICE_CASE("model: the highest of a row, the first of equals") {
  constexpr int kWidth = 32003;
  std::vector<std::vector<float>> cases(7, normal_rows(12, kWidth));
  cases[1][kWidth - 1] = 100;
  cases[2][0] = cases[2][31000] = cases[2][5] = 100;
  cases[3].assign(kWidth, NAN);
  cases[4][7] = INFINITY;
  cases[5].assign(kWidth, -INFINITY);
  cases[6].assign(kWidth, NAN);
  cases[6][20000] = -3;
  std::vector<float> all;
  for (const auto& row : cases) all.insert(all.end(), row.begin(), row.end());
  const Array<float> there(all);
  const Array<int> out(cases.size());
  kvasir::device_argmax(there, static_cast<int64_t>(cases.size()), kWidth, out, nullptr);
  const auto found = out.read();
  int highest = 0;
  for (int i = 0; i < kWidth; ++i) highest = cases[0][i] > cases[0][highest] ? i : highest;
  const int expected[] = {highest, kWidth - 1, 0, -1, -1, -1, 20000};
  for (size_t i = 0; i < cases.size(); ++i) CHECK(found[i] == expected[i], "row " << i << ": " << found[i]);
}

DEVICE_CASE("model: random numbers are spread as they should be") {
  constexpr size_t kCount = 1 << 20;
  const Array<float> there(kCount), again(kCount);
  kvasir::device_random(5, 0.02, kCount, ElementType::kFloat32, there, nullptr);
  kvasir::device_random(6, 0.02, kCount, ElementType::kFloat32, again, nullptr);
  const auto found = there.read(), other = again.read();
  double sum = 0, squares = 0, products = 0, neighbours = 0;
  for (size_t i = 0; i < kCount; ++i) {
    sum += found[i];
    squares += double{found[i]} * found[i];
    products += double{found[i]} * other[i];
    if (i > 0) neighbours += double{found[i]} * found[i - 1];
  }
  // Means of a million are off by a thousandth of the deviation; five times that is one draw in a million.
  CHECK(std::fabs(sum / kCount) < 5e-3 * 0.02, sum / kCount);
  CHECK(std::fabs(squares / kCount / (0.02 * 0.02) - 1) < 5e-3, squares / kCount);
  CHECK(std::fabs(products / kCount) < 5e-3 * 0.02 * 0.02, products / kCount);
  CHECK(std::fabs(neighbours / kCount) < 5e-3 * 0.02 * 0.02, neighbours / kCount);
}

// Nothing here needs a device: arguments are looked at first.
HOST_CASE("model: what is wrong is refused before the device hears of it") {
  float x = 0;
  int refused = 0;
  const auto refuses = [&](const auto& call) {
    try {
      call();
    } catch (const kvasir::Error& e) {
      refused += e.code() == kvasir::ErrorCode::kInvalidArgument;
    }
  };
  refuses([&] { kvasir::device_embed(nullptr, 1, &x, 1, &x, nullptr); });
  refuses([&] { kvasir::device_gather(&x, &x, 0, 1, &x, nullptr); });
  refuses([&] { kvasir::device_rms_norm(&x, &x, NAN, 1, 1, Precision::kFast, &x, nullptr); });
  refuses([&] { kvasir::device_add(&x, nullptr, &x, &x, 0, 1, INT64_MAX, Precision::kFast, &x, nullptr); });
  refuses([&] { kvasir::device_add(&x, nullptr, &x, &x, 0, 1, 1, Precision::kFast, nullptr, nullptr); });
  refuses([&] { kvasir::device_rope_turns(&x, 33, 1, &x, 1, &x, nullptr); });
  refuses([&] { kvasir::device_swiglu(&x, nullptr, 1, 1, static_cast<Precision>(7), &x, nullptr); });
  refuses([&] { kvasir::device_from_product(&x, 1, 1, Precision::kFast, &x, nullptr); });
  refuses([&] { kvasir::device_argmax(&x, 1, int64_t{1} << 40, &x, nullptr); });
  refuses([&] { kvasir::device_random(1, -1, 1, ElementType::kFloat32, &x, nullptr); });
  CHECK(refused == 10, refused);
}

}  // namespace
