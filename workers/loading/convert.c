/* (value - mean) * scale as float32, or bytes as they are: each is read once and written once, without the GIL.

The same two operations as NumPy's, each rounded to float32, so the results are equal to the bit. Large results go past
the caches ("streaming stores"): what does not fit into them need not be read before it is written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Chosen when the program is loaded; the sanitizers' own start comes after that. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define MOST_AXES 64 /* as in NumPy */
#define BLOCK 1024   /* floats: converted into the first cache, then written past it */
#define LINE_BYTES 64
#define AHEAD 1024   /* bytes, within a row and of a later one: the processor itself foresees only neighbours */
#define ROWS_AHEAD 2

typedef void (*Line)(const char *from, float *restrict to, Py_ssize_t n, const float *mean, Py_ssize_t mean_step,
                     const float *scale, Py_ssize_t scale_step);

#define EACH(MEAN, SCALE) for (Py_ssize_t i = 0; i < n; i++) to[i] = ((float)values[i] - (MEAN)) * (SCALE)
/* The first two forms are the usual ones. */
#define LINE(NAME, T)                                                                                                  \
    WIDE static void NAME(const char *from, float *restrict to, Py_ssize_t n, const float *mean, Py_ssize_t mean_step, \
                          const float *scale, Py_ssize_t scale_step)                                                   \
    {                                                                                                                  \
        const T *values = (const T *)from;                                                                             \
        const float m = *mean, k = *scale;                                                                             \
        if (!mean_step && !scale_step) EACH(m, k);                                                                     \
        else if (mean_step == 1 && !scale_step) EACH(mean[i], k);                                                      \
        else EACH(mean[i * mean_step], scale[i * scale_step]);                                                         \
    }
LINE(of_u8, uint8_t)
LINE(of_i8, int8_t)
LINE(of_u16, uint16_t)
LINE(of_i16, int16_t)
LINE(of_u32, uint32_t)
LINE(of_i32, int32_t)
LINE(of_u64, uint64_t)
LINE(of_i64, int64_t)
LINE(of_f32, float)

static Line line_of(const char *format)
{
    static const struct { char format; Line line; } all[] = {
        {'B', of_u8},  {'b', of_i8},  {'H', of_u16}, {'h', of_i16}, {'I', of_u32}, {'i', of_i32},
        {'Q', of_u64}, {'q', of_i64}, {'L', of_u64}, {'l', of_i64}, {'f', of_f32}, /* a long has 64 bits on Linux */
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) /* a longer format says another byte order, or no alignment */
        if (format[0] == all[i].format && !format[1]) return all[i].line;
    return NULL;
}

/* A sample as lines of one step in mean and in scale. The innermost axis comes first. */
typedef struct {
    Line line;
    Py_ssize_t itemsize, items; /* items: in a sample */
    int streams, axes;
    Py_ssize_t extent[MOST_AXES], inner[MOST_AXES], mean_step[MOST_AXES], scale_step[MOST_AXES];
} Job;

static void copy(char *to, const char *from, Py_ssize_t n, int streams)
{
    Py_ssize_t i = 0;
#ifdef __SSE2__
    for (; streams && i < n && ((uintptr_t)(to + i) & 15); i++) to[i] = from[i];
    for (; streams && i + LINE_BYTES <= n; i += LINE_BYTES) {
        _mm_prefetch(from + i + AHEAD, _MM_HINT_NTA); /* what is read once pushes nobody's data out of the caches */
        for (int k = 0; k < LINE_BYTES; k += 16)
            _mm_stream_si128((__m128i *)(to + i + k), _mm_loadu_si128((const __m128i *)(from + i + k)));
    }
#endif
    if (i < n) memcpy(to + i, from + i, (size_t)(n - i));
}

static void put(const Job *job, int axis, const char *from, float *to, const float *mean, const float *scale)
{
    const Py_ssize_t n = job->extent[axis], mean_step = job->mean_step[axis], scale_step = job->scale_step[axis];
    const Py_ssize_t items = axis ? job->inner[axis] : job->streams ? BLOCK : n;
    float block[BLOCK] __attribute__((aligned(64)));
    for (Py_ssize_t i = 0; axis && i < n; i++)
        put(job, axis - 1, from + i * items * job->itemsize, to + i * items, mean + i * mean_step,
            scale + i * scale_step);
    for (Py_ssize_t i = 0; !axis && i < n; i += items) {
        const Py_ssize_t count = n - i < items ? n - i : items;
        job->line(from + i * job->itemsize, job->streams ? block : to, count, mean + i * mean_step, mean_step,
                  scale + i * scale_step, scale_step);
        if (job->streams) copy((char *)(to + i), (const char *)block, count * (Py_ssize_t)sizeof *to, 1);
    }
}

/* The step along an axis, counted from the last one, as NumPy broadcasts; -1 if it does not. `larger`: it may be so. */
static Py_ssize_t step_of(const Py_buffer *of, int from_last, Py_ssize_t extent, int larger)
{
    const int axis = of->ndim - 1 - from_last;
    if (axis < 0 || (of->shape[axis] == 1 && !larger)) return 0;
    const int fits = larger ? of->shape[axis] >= extent : of->shape[axis] == extent;
    return fits && of->strides[axis] >= 0 ? of->strides[axis] / (Py_ssize_t)sizeof(float) : -1;
}

/* Cut samples of the shape of `out`, less its first axis. Axes that lie behind each other in all three are one. */
static int cut(Job *job, const Py_buffer *out, const Py_buffer *mean, const Py_buffer *scale, int larger)
{
    job->items = 1;
    for (int i = 0; i < out->ndim - 1 || !job->axes; i++) {
        const Py_ssize_t extent = i < out->ndim - 1 ? out->shape[out->ndim - 1 - i] : 1; /* 1: samples of one number */
        const Py_ssize_t of_mean = step_of(mean, i, extent, larger), of_scale = step_of(scale, i, extent, 0);
        const int last = job->axes - 1;
        if (of_mean < 0 || of_scale < 0) return 0;
        if (job->axes && of_mean == job->mean_step[last] * job->extent[last] &&
            of_scale == job->scale_step[last] * job->extent[last]) {
            job->extent[last] *= extent;
        } else {
            job->extent[job->axes] = extent, job->inner[job->axes] = job->items;
            job->mean_step[job->axes] = of_mean, job->scale_step[job->axes++] = of_scale;
        }
        job->items *= extent;
    }
    return 1;
}

enum { VALUES, BEGINS, POSITIONS, OUT, MEAN, SCALE, CORNERS, ARGUMENTS };

/* The sample that begins there, or NULL if it lies outside. */
static const char *sample_at(const Job *job, const Py_buffer *values, int64_t begin)
{
    const int outside = begin < 0 || begin > values->len / job->itemsize - job->items;
    return outside ? NULL : (const char *)values->buf + begin * job->itemsize;
}

/* Returns the number of rows that were done: fewer if the next one lies outside of its memory. */
static Py_ssize_t rows_done(const Job *job, const Py_buffer *b, Py_ssize_t rows)
{
    const Py_ssize_t row_bytes = job->items * job->itemsize, fetched = row_bytes < AHEAD ? row_bytes : AHEAD;
    const int64_t *begins = b[BEGINS].buf, *positions = b[POSITIONS].buf, *corners = b[CORNERS].buf;
    for (Py_ssize_t row = 0; row < rows; row++) {
        const int64_t begin = begins ? begins[row] : row * job->items, position = positions ? positions[row] : row;
        const char *from = sample_at(job, b + VALUES, begin), *later = NULL;
        if (!from || position < 0 || position >= b[OUT].shape[0]) return row;
        if (begins && row + ROWS_AHEAD < rows) later = sample_at(job, b + VALUES, begins[row + ROWS_AHEAD]);
        for (Py_ssize_t i = 0; later && i < fetched; i += LINE_BYTES) __builtin_prefetch(later + i);
        char *to = (char *)b[OUT].buf + position * job->items * b[OUT].itemsize;
        const char *mean = b[MEAN].buf;
        for (int i = 0; corners && i < 3; i++) { /* which mean, and its part's top and left */
            const int axis = i ? i + 1 : 0;
            const int64_t at = corners[row * 3 + i];
            if (at < 0 || at > b[MEAN].shape[axis] - (i ? b[OUT].shape[axis] : 1)) return row;
            mean += at * b[MEAN].strides[axis];
        }
        if (job->line) put(job, job->axes - 1, from, (float *)to, (const float *)mean, b[SCALE].buf);
        else copy(to, from, job->items, job->streams);
    }
    return rows;
}

static int is_of(const Py_buffer *array, const char *type) { return array->obj && !strcmp(array->format, type); }

static int are_places(const Py_buffer *places, Py_ssize_t rows, int each)
{
    return !places->obj || (places->itemsize == 8 && places->len == rows * each * 8);
}

static int run(const Py_buffer *b, int streams)
{
    Job job = {.itemsize = b[VALUES].itemsize, .streams = streams};
    const int larger = b[CORNERS].obj != NULL, axes = b[OUT].ndim;
    const int copies = !b[MEAN].obj && !b[SCALE].obj && is_of(b + VALUES, "B") && is_of(b + OUT, "B");
    const int floats = is_of(b + OUT, "f") && is_of(b + MEAN, "f") && is_of(b + SCALE, "f");
    const Py_ssize_t rows = b[POSITIONS].obj ? b[POSITIONS].len / 8 : axes ? b[OUT].shape[0] : 0;
    if (!(copies || (floats && b[VALUES].obj && (job.line = line_of(b[VALUES].format)))) || axes < 1 ||
        axes > MOST_AXES || (larger && (axes != 4 || b[MEAN].ndim != 4)) || !are_places(b + BEGINS, rows, 1) ||
        !are_places(b + POSITIONS, rows, 1) || !are_places(b + CORNERS, rows, 3) ||
        !cut(&job, b + OUT, b + MEAN, b + SCALE, larger)) {
        PyErr_SetString(PyExc_ValueError, "expected numbers, places as int64, and a mean and a scale that broadcast");
        return 0;
    }
    Py_ssize_t done = rows;
    Py_BEGIN_ALLOW_THREADS
    if (job.items) done = rows_done(&job, b, rows);
#ifdef __SSE2__
    _mm_sfence();
#endif
    Py_END_ALLOW_THREADS
    if (done < rows) PyErr_Format(PyExc_IndexError, "row %zd lies outside of its memory", done);
    return done == rows;
}

/* convert(values, begins, positions, out, mean, scale, corners, streams): see _convert.pyi. */
static PyObject *convert(PyObject *module, PyObject *arguments)
{
    PyObject *g[ARGUMENTS];
    Py_buffer buffers[ARGUMENTS] = {{0}};
    int streams, got = 0, done = 0;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOp", g, g + 1, g + 2, g + 3, g + 4, g + 5, g + 6, &streams)) return NULL;
    for (; got < ARGUMENTS; got++) {
        const int layout = got == MEAN || got == SCALE ? PyBUF_STRIDES : PyBUF_C_CONTIGUOUS;
        const int flags = layout | PyBUF_FORMAT | (got == OUT ? PyBUF_WRITABLE : 0);
        if (g[got] != Py_None && PyObject_GetBuffer(g[got], buffers + got, flags)) break;
    }
    if (got == ARGUMENTS) done = run(buffers, streams);
    while (got--) PyBuffer_Release(buffers + got);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {{"convert", convert, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_convert", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__convert(void) { return PyModuleDef_Init(&definition); }
