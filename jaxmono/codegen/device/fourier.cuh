// Discrete Fourier transforms of lines, which a block has in its shared memory between passes.
//
//   pass 1          memory  --R0 elements a thread, N / R0 apart--> DFT of R0 --> shared memory
//   pass 2          shared  --R1 elements, N / R1 apart, turned--> DFT of R1 --> the other half of it
//   the last one    shared  --> DFT --> memory, in order
//
// Stockham's algorithm (Govindaraju et al. 2008, "High performance discrete Fourier transforms on graphics
// processors", figure 2): what a pass stores has its elements where the next one wants them, and the last
// one's are in order. Neighbouring threads have neighbours in a line, or, ACROSS, those of neighbouring lines.
#pragma once
#include "jaxmono/vec.cuh"
#include "jaxmono/warp.cuh"
#include "jaxmono/waves.cuh"

namespace jaxmono {

template <class T>
struct alignas(2 * sizeof(T)) Complex {
  T re, im;
};

template <class T>
JM_DEVICE Complex<T> operator+(const Complex<T>& a, const Complex<T>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <class T>
JM_DEVICE Complex<T> operator-(const Complex<T>& a, const Complex<T>& b) {
  return {a.re - b.re, a.im - b.im};
}
template <class T>
JM_DEVICE Complex<T> operator*(const Complex<T>& a, const Complex<T>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// ---- roots of one --------------------------------------------------------------------------------

template <int N>
struct Roots {
  double re[N], im[N];
};

// e^(2 pi i m / N), for the compiler: of at most half a quarter of a turn, by Taylor's series.
template <int N>
JM_DEVICE constexpr Roots<N> roots() {
  Roots<N> out{};
  for (int m = 0; m < N; ++m) {
    const int quarters = (4 * m + N / 2) / N;
    const double x = 1.57079632679489661923 * (4 * m - quarters * N) / N;
    double s = 0, c = 0, term = 1;
    for (int i = 0; i < 22; i += 2) {
      c += i % 4 ? -term : term;
      term = term * x / (i + 1);
      s += i % 4 ? -term : term;
      term = term * x / (i + 2);
    }
    out.re[m] = quarters % 2 ? (quarters == 1 ? -s : s) : (quarters == 2 ? -c : c);
    out.im[m] = quarters % 2 ? (quarters == 1 ? c : -c) : (quarters == 2 ? -s : s);
  }
  return out;
}

// e^(2 pi i m / N), 0 <= m < N; its conjugate unless BACK.
template <class T, int N, bool BACK>
JM_DEVICE Complex<T> turned(int m) {
  const int quarters = (4 * m + N / 2) / N, rest = 4 * m - quarters * N;  // exactly
  const T x = static_cast<T>(rest) * static_cast<T>(1.57079632679489661923 / N);
  T s, c;
  if constexpr (is_same<T, float>) {
    const auto q = static_cast<uint32_t>(quarters);
    s = sine_of(Turn{x, q}), c = sine_of(Turn{x, q + 1});
  } else {
    const T a = sin(x), b = cos(x);
    s = quarters & 1 ? b : a, c = quarters & 1 ? a : b;
    if (quarters & 2) s = -s;
    if ((quarters + 1) & 2) c = -c;
  }
  return {c, BACK ? s : -s};
}

// ---- a thread's own ------------------------------------------------------------------------------

JM_DEVICE constexpr int first_factor(int n) {
  if (n % 4 == 0) return 4;
  for (int f = 2; f < n; ++f)
    if (n % f == 0) return f;
  return n;
}

// x becomes its transform.
template <int R, bool BACK, class T>
JM_DEVICE void dft(Complex<T> (&x)[R]) {
  constexpr int A = first_factor(R), B = R / A;
  if constexpr (R == 1) {
  } else if constexpr (R == 2) {
    const Complex<T> a = x[0], b = x[1];
    x[0] = a + b, x[1] = a - b;
  } else if constexpr (R == 4) {
    const Complex<T> a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = x[1] - x[3];
    const Complex<T> turn = BACK ? Complex<T>{-d.im, d.re} : Complex<T>{d.im, -d.re};
    x[0] = a + c, x[1] = b + turn, x[2] = a - c, x[3] = b - turn;
  } else if constexpr (B > 1) {
    constexpr Roots<R> w = roots<R>();
    Complex<T> y[R];
#pragma unroll
    for (int b = 0; b < B; ++b) {
      Complex<T> part[A];
#pragma unroll
      for (int a = 0; a < A; ++a) part[a] = x[a * B + b];
      dft<A, BACK>(part);
#pragma unroll
      for (int k = 0; k < A; ++k)
        y[k * B + b] = b * k == 0 ? part[k]
                                  : part[k] * Complex<T>{static_cast<T>(w.re[b * k % R]),
                                                         static_cast<T>(BACK ? w.im[b * k % R] : -w.im[b * k % R])};
    }
#pragma unroll
    for (int k = 0; k < A; ++k) {
      Complex<T> part[B];
#pragma unroll
      for (int b = 0; b < B; ++b) part[b] = y[k * B + b];
      dft<B, BACK>(part);
#pragma unroll
      for (int b = 0; b < B; ++b) x[k + A * b] = part[b];
    }
  } else {  // an odd prime: of sums and differences of those that are as far from both ends
    constexpr Roots<R> w = roots<R>();
    constexpr int HALF = R / 2;
    Complex<T> sum[HALF], difference[HALF];
    const Complex<T> first = x[0];
#pragma unroll
    for (int j = 0; j < HALF; ++j) {
      sum[j] = x[j + 1] + x[R - 1 - j], difference[j] = x[j + 1] - x[R - 1 - j];
      x[0] = x[0] + sum[j];
    }
#pragma unroll
    for (int k = 1; k <= HALF; ++k) {
      Complex<T> a = first, b{0, 0};
#pragma unroll
      for (int j = 0; j < HALF; ++j) {
        const T c = static_cast<T>(w.re[(j + 1) * k % R]), s = static_cast<T>(w.im[(j + 1) * k % R]);
        a.re += sum[j].re * c, a.im += sum[j].im * c;
        b.re += difference[j].re * s, b.im += difference[j].im * s;
      }
      const Complex<T> turn = BACK ? Complex<T>{-b.im, b.re} : Complex<T>{b.im, -b.re};
      x[k] = a + turn, x[R - k] = a - turn;
    }
  }
}

// ---- a block's -----------------------------------------------------------------------------------

// Where an element of a line is in shared memory: steps of 16 elements do not meet in one bank.
JM_DEVICE constexpr int apart(int i) { return i + i / 16; }

// From one line to the next: nor do neighbours of LINES lines.
JM_DEVICE constexpr int line_size(int n, int lines) {
  return lines == 1 ? apart(n) : (apart(n) + 15) / 16 * 16 + (lines < 16 ? 16 / lines : 1);
}

// ACROSS_FROM, ACROSS_TO: in the first pass, and in the others, neighbouring threads have neighbouring lines.
template <class T, int N, int LINES, bool ACROSS_FROM, bool ACROSS_TO, bool BACK, int THREADS>
struct Fourier {
  using Z = Complex<T>;
  static constexpr int SIZE = line_size(N, LINES), COPY = SIZE * LINES;

  // Element a + b, where `apart` of both is that of the sum, if SUMS: b is known to the compiler.
  template <bool SUMS>
  JM_DEVICE static int place(int a, int b, int line) {
    return line * SIZE + (SUMS ? apart(a) + apart(b) : apart(a + b));
  }

  // One pass: of DONE elements the transforms are made.
  template <int DONE, int R, class Load, class Store>
  JM_DEVICE static void pass(Load load, Store store) {
    constexpr int PART = N / R;
    constexpr bool ACROSS = DONE == 1 ? ACROSS_FROM : ACROSS_TO;
    // R elements DONE apart: in sixteens of their own, or all at the same place of sixteens.
    constexpr bool SUMS = DONE % 16 == 0 || (16 % DONE == 0 && (DONE * R % 16 == 0 || 16 % (DONE * R) == 0));
#pragma unroll 1
    for (int u = thread_id(); u < LINES * PART; u += THREADS) {
      const int line = ACROSS ? u % LINES : u / PART, t = ACROSS ? u / LINES : u % PART;
      Z x[R];
#pragma unroll
      for (int q = 0; q < R; ++q) x[q] = load.template operator()<PART % 16 == 0>(t, q * PART, line);
      const int k = t % DONE;
      if constexpr (DONE > 1) {
        Z w[R];
        w[1] = turned<T, DONE * R, BACK>(k);
#pragma unroll
        for (int q = 2; q < R; ++q) w[q] = w[q / 2] * w[q - q / 2];
#pragma unroll
        for (int q = 1; q < R; ++q) x[q] = x[q] * w[q];
      }
      dft<R, BACK>(x);
#pragma unroll
      for (int q = 0; q < R; ++q) store.template operator()<SUMS>((t - k) * R + k, q * DONE, line, x[q]);
    }
  }

  struct In {
    Z* to;
    template <bool SUMS>
    JM_DEVICE void operator()(int a, int b, int line, const Z& x) const { to[place<SUMS>(a, b, line)] = x; }
  };
  struct Of {
    const Z* from;
    template <bool SUMS>
    JM_DEVICE Z operator()(int a, int b, int line) const { return from[place<SUMS>(a, b, line)]; }
  };
  template <class F>
  struct InMemory {  // `from`, or `put`
    F& f;
    template <bool, class... X>
    JM_DEVICE auto operator()(int a, int b, X... x) const { return f(a + b, x...); }
  };

  // Of radices R, MORE..., where DONE elements are transformed. All THREADS take part.
  template <int DONE, int R, int... MORE, class Load, class Store>
  JM_DEVICE static void more(Load load, Store store, Z* to, Z* next) {
    if constexpr (sizeof...(MORE) == 0) {
      pass<DONE, R>(load, store);
    } else {
      if constexpr (DONE == 1) syncthreads();  // the block's last task may still read
      pass<DONE, R>(load, In{to});
      syncthreads();
      more<DONE * R, MORE...>(Of{to}, store, next, to);
    }
  }

  // All passes. smem: 2 COPY elements, one COPY of two passes, none of one.
  template <int... R, class From, class Put>
  JM_DEVICE static void passes(From from, Put put, Z* to, Z* next) {
    more<1, R...>(InMemory<From>{from}, InMemory<Put>{put}, to, next);
  }

  // Of N pairs of neighbours of 2 N real numbers: the first N + 1 elements of these' transform, each made
  // of Z[k] and Z[N - k], the pairs' (Press et al., "Numerical recipes", section 12.3). smem: 2 COPY elements,
  // one of one pass.
  template <int... R, class From, class Put>
  JM_DEVICE static void real(From from, Put put, Z* to, Z* next) {
    Z* const last = sizeof...(R) % 2 ? to : next;
    if constexpr (sizeof...(R) == 1) syncthreads();
    more<1, R...>(InMemory<From>{from}, In{last}, to, next);
    syncthreads();
    constexpr int PAIRS = N / 2 + 1;
#pragma unroll 1
    for (int u = thread_id(); u < LINES * PAIRS; u += THREADS) {
      const int line = u / PAIRS, k = u % PAIRS;
      const Z a = last[place<false>(k, 0, line)], b = last[place<false>(k ? N - k : 0, 0, line)];
      const T half = static_cast<T>(0.5);
      // Halves, since the sum of two elements may be too large.
      const Z p{half * a.re, half * a.im}, q{half * b.re, half * b.im};
      const Z even{p.re + q.re, p.im - q.im}, odd{p.im + q.im, q.re - p.re};
      const Z turn = odd * turned<T, 2 * N, false>(k);
      put(k, line, even + turn);
      if (2 * k != N) put(N - k, line, Z{even.re - turn.re, turn.im - even.im});
    }
  }
};

// What is transformed back to N pairs of 2 N real numbers, of the elements a = X[k] and b = X[N - k].
template <class T, int N>
JM_DEVICE Complex<T> pair_of(int k, Complex<T> a, Complex<T> b) {
  if (k == 0) a.im = b.im = 0;  // of real numbers' transforms they are
  const Complex<T> turn = Complex<T>{a.re - b.re, a.im + b.im} * turned<T, 2 * N, true>(k);
  return {a.re + b.re - turn.im, a.im - b.im + turn.re};
}

}  // namespace jaxmono
