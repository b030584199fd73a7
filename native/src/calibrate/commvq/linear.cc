#include "calibrate/commvq/linear.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/thread_pool.h"

namespace kvasir::commvq {
namespace {

constexpr int kRowsPerTask = 32;
constexpr int kPanel = 32;
constexpr int kColumnsPerTask = 64;

int tasks_of(int64_t count, int each) { return static_cast<int>((count + each - 1) / each); }

}  // namespace

void transpose(const float* in, int64_t rows, int64_t columns, float* out) {
  ThreadPool::shared().run(tasks_of(rows, kRowsPerTask), [&](int task) {
    const int64_t end = std::min(rows, (task + int64_t{1}) * kRowsPerTask);
    for (int64_t n = 0; n < columns; ++n) {
      for (int64_t m = int64_t{task} * kRowsPerTask; m < end; ++m) out[n * rows + m] = in[m * columns + n];
    }
  });
}

// A = U^t U by panels of rows: a panel is finished, then all rows below it lose its part.
void solve_symmetric(int count, std::vector<double>& a, int columns, std::vector<double>& b) {
  const auto row = [&](int k) { return a.data() + static_cast<size_t>(k) * count; };
  const auto right = [&](int k) { return b.data() + static_cast<size_t>(k) * columns; };
  double trace = 0.0;
  for (int k = 0; k < count; ++k) trace += row(k)[k];
  const double least = 1e-13 * trace / count;
  std::vector<double> inverse(count);
  for (int first = 0; first < count; first += kPanel) {
    const int end = std::min(count, first + kPanel);
    for (int k = first; k < end; ++k) {
      inverse[k] = row(k)[k] > least ? 1.0 / std::sqrt(row(k)[k]) : 0.0;
      for (int j = k; j < count; ++j) row(k)[j] *= inverse[k];
      for (int i = k + 1; i < end; ++i) {
        const double factor = row(k)[i];
        for (int j = i; j < count; ++j) row(i)[j] -= factor * row(k)[j];
      }
    }
    ThreadPool::shared().run(tasks_of(count - end, kRowsPerTask), [&](int task) {
      const int begin = end + task * kRowsPerTask;
      for (int i = begin; i < std::min(count, begin + kRowsPerTask); ++i) {
        for (int k = first; k < end; ++k) {
          const double factor = row(k)[i];
          for (int j = i; j < count; ++j) row(i)[j] -= factor * row(k)[j];
        }
      }
    });
  }
  ThreadPool::shared().run(tasks_of(columns, kColumnsPerTask), [&](int task) {
    const int begin = task * kColumnsPerTask, end = std::min(columns, begin + kColumnsPerTask);
    for (int k = 0; k < count; ++k) {
      for (int c = begin; c < end; ++c) right(k)[c] *= inverse[k];
      for (int i = k + 1; i < count; ++i) {
        const double factor = row(k)[i];
        for (int c = begin; c < end; ++c) right(i)[c] -= factor * right(k)[c];
      }
    }
    for (int k = count - 1; k >= 0; --k) {
      for (int i = k + 1; i < count; ++i) {
        const double factor = row(k)[i];
        for (int c = begin; c < end; ++c) right(k)[c] -= factor * right(i)[c];
      }
      for (int c = begin; c < end; ++c) right(k)[c] *= inverse[k];
    }
  });
}

// Householder reflections to a tridiagonal matrix, then rotations (QL with implicit shifts) until its off-diagonal is
// gone. Reflections and rotations are applied to the rows of a matrix that ends up as the eigenvectors.
void eigenvectors(int count, std::vector<double> a, std::vector<double>& values, std::vector<double>& vectors) {
  const size_t n = static_cast<size_t>(count);
  std::vector<double> diagonal(n), beside(n, 0.0), v(n), p(n);
  vectors.assign(n * n, 0.0);
  std::vector<std::vector<double>> reflections;
  // Row and column k of what is left, reflected onto the entry next to the diagonal.
  for (size_t k = 0; k + 2 <= n; ++k) {
    double* const row = a.data() + k * n;
    diagonal[k] = row[k];
    double norm = 0.0;
    for (size_t j = k + 1; j < n; ++j) norm += row[j] * row[j];
    norm = std::sqrt(norm);
    std::fill(v.begin(), v.end(), 0.0);
    double square = 0.0;
    for (size_t j = k + 1; j < n; ++j) v[j] = row[j];
    const double target = v[k + 1] > 0.0 ? -norm : norm;
    v[k + 1] -= target;
    for (size_t j = k + 1; j < n; ++j) square += v[j] * v[j];
    if (k + 2 >= n || square == 0.0) {
      beside[k] = row[k + 1];
      reflections.emplace_back();
      continue;
    }
    beside[k] = target;
    // A - v w^t - w v^t with w = p - (v p / |v|^2) v and p = 2 A v / |v|^2.
    std::fill(p.begin(), p.end(), 0.0);
    for (size_t i = k + 1; i < n; ++i) {
      const double* from = a.data() + i * n;
      const double factor = v[i];
      for (size_t j = k + 1; j < n; ++j) p[j] += factor * from[j];
    }
    double overlap = 0.0;
    for (size_t j = k + 1; j < n; ++j) overlap += v[j] * (p[j] *= 2.0 / square);
    for (size_t j = k + 1; j < n; ++j) p[j] -= overlap / square * v[j];
    for (size_t i = k + 1; i < n; ++i) {
      double* to = a.data() + i * n;
      const double vi = v[i], pi = p[i];
      for (size_t j = k + 1; j < n; ++j) to[j] -= vi * p[j] + pi * v[j];
    }
    for (size_t j = k + 1; j < n; ++j) v[j] *= std::sqrt(2.0 / square);
    reflections.push_back(v);
  }
  diagonal[n - 1] = a[n * n - 1];
  for (size_t i = 0; i < n; ++i) vectors[i * n + i] = 1.0;
  // vectors = (H_0 H_1 ...)^t, its rows those of the transposed product: row i of Q^t is Q's column i.
  for (size_t k = reflections.size(); k-- > 0;) {
    const std::vector<double>& h = reflections[k];
    if (h.empty()) continue;
    for (size_t i = k + 1; i < n; ++i) {
      double* const row = vectors.data() + i * n;
      double product = 0.0;
      for (size_t j = k + 1; j < n; ++j) product += row[j] * h[j];
      for (size_t j = k + 1; j < n; ++j) row[j] -= product * h[j];
    }
  }
  for (size_t l = 0; l < n; ++l) {
    for (int turn = 0; turn < 200; ++turn) {
      size_t m = l;
      while (m + 1 < n && std::fabs(beside[m]) > 1e-16 * (std::fabs(diagonal[m]) + std::fabs(diagonal[m + 1]))) ++m;
      if (m == l) break;
      double g = (diagonal[l + 1] - diagonal[l]) / (2.0 * beside[l]);
      double r = std::hypot(g, 1.0);
      g = diagonal[m] - diagonal[l] + beside[l] / (g + std::copysign(r, g));
      double s = 1.0, c = 1.0, shift = 0.0;
      size_t i = m;
      while (i-- > l) {
        double f = s * beside[i];
        const double b = c * beside[i];
        r = std::hypot(f, g);
        beside[i + 1] = r;
        if (r == 0.0) {
          diagonal[i + 1] -= shift;
          beside[m] = 0.0;
          break;
        }
        s = f / r;
        c = g / r;
        g = diagonal[i + 1] - shift;
        r = (diagonal[i] - g) * s + 2.0 * c * b;
        shift = s * r;
        diagonal[i + 1] = g + shift;
        g = c * r - b;
        double* const x = vectors.data() + i * n;
        double* const y = x + n;
        for (size_t j = 0; j < n; ++j) {
          f = y[j];
          y[j] = s * x[j] + c * f;
          x[j] = c * x[j] - s * f;
        }
      }
      if (r == 0.0 && i + 1 > l) continue;
      diagonal[l] -= shift;
      beside[l] = g;
      beside[m] = 0.0;
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return diagonal[x] > diagonal[y]; });
  values.resize(n);
  std::vector<double> sorted(n * n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = diagonal[order[i]];
    std::copy(vectors.begin() + order[i] * n, vectors.begin() + (order[i] + 1) * n, sorted.begin() + i * n);
  }
  vectors.swap(sorted);
}

}  // namespace kvasir::commvq
