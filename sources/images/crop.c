/* A part of a JPEG, decoded into its place in the whole picture by libjpeg-turbo.

Only the part is transformed; all else is entropy-decoded, to the end, because most damage shows only there. The pixels
are those of a whole decode. Whatever libjpeg-turbo has to say against a file, an error or a warning, ends the attempt:
the caller then decodes the whole picture, and judges by that. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or later is needed: others cannot crop, or skip rows with errors"
#endif

typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf back;
} Decoder;

typedef struct {
    unsigned top, left, height, width;
} Part;

static void give_up(j_common_ptr jpeg) { longjmp(((Decoder *)jpeg)->back, 1); }

static void hear(j_common_ptr jpeg, int level)
{
    if (level < 0) give_up(jpeg); /* a warning; all else is talk */
}

static void read_rows(j_decompress_ptr jpeg, JSAMPLE *first, size_t stride, unsigned rows)
{
    for (unsigned i = 0; i < rows; i++) {
        JSAMPROW row = first + i * stride;
        if (jpeg_read_scanlines(jpeg, &row, 1) != 1) give_up((j_common_ptr)jpeg);
    }
}

/* Returns 1 if the part lies in `out`. `decoder` belongs to the caller: what longjmp may spoil are locals of this
function, of which none is changed behind setjmp. */
static int decode(Decoder *decoder, const Py_buffer *data, const Py_buffer *out, unsigned by, const Part *part)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg->err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = give_up;
    decoder->errors.emit_message = hear;
    jpeg->mem = NULL; /* so that it can be destroyed before it is made */
    if (setjmp(decoder->back)) {
        jpeg_destroy_decompress(jpeg);
        return 0;
    }
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, data->buf, (unsigned long)data->len);
    jpeg_read_header(jpeg, TRUE);
    for (int i = 0; i < jpeg->num_components; i++) /* others: some versions before 3.0 miscount columns */
        if (jpeg->comp_info[i].h_samp_factor * jpeg->comp_info[i].v_samp_factor > 4) give_up((j_common_ptr)jpeg);
    jpeg->out_color_space = out->shape[2] == 3 ? JCS_EXT_BGR : JCS_GRAYSCALE;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->scale_num = 1;
    jpeg->scale_denom = by;
    jpeg_start_decompress(jpeg);
    if (jpeg->output_height != out->shape[0] || jpeg->output_width != out->shape[1] ||
        jpeg->output_components != out->shape[2])
        give_up((j_common_ptr)jpeg);

    /* One column more on either side: colours that are stored at half the size are interpolated between neighbours. */
    const unsigned end = part->left + part->width;
    JDIMENSION left = part->left - (part->left > 0);
    JDIMENSION width = end + (end < jpeg->output_width) - left;
    jpeg_crop_scanline(jpeg, &left, &width);
    const size_t stride = (size_t)out->strides[0];
    JSAMPLE *first = (JSAMPLE *)out->buf + (size_t)left * (size_t)out->shape[2];
    if (part->top) jpeg_skip_scanlines(jpeg, part->top);
    read_rows(jpeg, first + part->top * stride, stride, part->height);
    /* Skipping to the very end would not look at what is skipped, so the last row is decoded. */
    const unsigned last = jpeg->output_height - 1;
    if (jpeg->output_scanline < last) jpeg_skip_scanlines(jpeg, last - jpeg->output_scanline);
    if (jpeg->output_scanline == last) read_rows(jpeg, first + last * stride, stride, 1);
    jpeg_finish_decompress(jpeg);
    jpeg_destroy_decompress(jpeg);
    return 1;
}

/* decode_part(data, out, by, (top, left, height, width)): see _crop.pyi. */
static PyObject *decode_part(PyObject *module, PyObject *arguments)
{
    PyObject *given;
    Py_buffer data, out;
    Part part;
    unsigned by;
    if (!PyArg_ParseTuple(arguments, "y*OI(IIII)", &data, &given, &by, &part.top, &part.left, &part.height,
                          &part.width))
        return NULL;
    int done = -1;
    if (!PyObject_GetBuffer(given, &out, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) {
        const int is_picture = out.ndim == 3 && out.itemsize == 1 && (out.shape[2] == 3 || out.shape[2] == 1);
        const int is_part = part.height && part.width;
        const size_t bottom = (size_t)part.top + part.height, right = (size_t)part.left + part.width;
        if (is_picture && is_part && bottom <= (size_t)out.shape[0] && right <= (size_t)out.shape[1]) {
            Decoder decoder;
            Py_BEGIN_ALLOW_THREADS
            done = decode(&decoder, &data, &out, by, &part);
            Py_END_ALLOW_THREADS
        } else {
            PyErr_SetString(PyExc_ValueError, "expected bytes of shape (height, width, 1 or 3), and a part of them");
        }
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&data);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyMethodDef methods[] = {{"decode_part", decode_part, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_crop", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__crop(void) { return PyModuleDef_Init(&definition); }
