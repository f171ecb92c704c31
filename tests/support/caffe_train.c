/* A stand-in for the `caffe train` binary: a program that embeds Python, and is no kinder to its layer than Caffe is.
 *
 *   caffe_train MODULE CLASS PARAM_STR TOPS ITERATIONS COMPUTE_MS [PHASE [OPTION…]]
 *
 * It makes the layer and calls setup, reshape, and at every iteration reshape and forward, then "computes" for
 * COMPUTE_MS while it holds the GIL. SIGINT and SIGHUP have handlers of its own, installed before Python's: after SIGINT
 * the iteration is finished, then it stops and exits 0; after SIGHUP it says that it takes a snapshot, and goes on. It
 * ends without running any exit handler. Where a hook raises it aborts, and prints nothing of the exception; with
 * -DPRINTS_ERRORS it prints the exception and exits with 1, as newer builds of Caffe do.
 *
 * It looks at no OPTION; the layer may.
 *
 * With -DUSES_HDF5 it is linked to an HDF5 library and calls it once, as Caffe does. With -DHAS_HDF5 it has a library of
 * its own under the same names, which is good for nothing: whoever calls it by mistake gets an error.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef HAS_HDF5
int H5open(void) { return -1; }
int H5get_libversion(unsigned *major, unsigned *minor, unsigned *release) {
    *major = *minor = *release = 0;
    return -1;
}
long H5Tcopy(long type) { return type - type - 1; }
long H5Pcreate(long class) { return class - class - 1; }
#endif
#ifdef USES_HDF5
extern int H5open(void);
#endif

static volatile sig_atomic_t interrupted = 0;
static volatile sig_atomic_t hung_up = 0;

static void on_signal(int number) {
    if (number == SIGINT) {
        interrupted = 1;
    } else {
        hung_up = 1;
    }
}

static void install_handlers(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* An uncaught C++ exception is what Caffe makes of a Python one; newer builds catch it in main. */
static PyObject *must(PyObject *object) {
    if (object == NULL) {
#ifdef PRINTS_ERRORS
        PyErr_Print();
        exit(1);
#endif
        abort();
    }
    return object;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void compute(double duration) {
    double end = seconds() + duration;
    while (seconds() < end) {
        /* The GIL stays where it is. */
    }
}

static void call(PyObject *layer, const char *hook, PyObject *bottom, PyObject *top) {
    Py_DECREF(must(PyObject_CallMethod(layer, hook, "OO", bottom, top)));
}

static PyObject *vector_of(PyObject *standin, int count) {
    PyObject *blobs = must(PyList_New(0));
    for (int i = 0; i < count; i++) {
        PyList_Append(blobs, must(PyObject_CallMethod(standin, "Blob", NULL)));
    }
    return must(PyObject_CallMethod(standin, "BlobVector", "O", blobs));
}

static void say(const char *format, int number) {
    char line[64];
    int length = snprintf(line, sizeof line, format, number);
    if (write(STDOUT_FILENO, line, (size_t)length) < 0) {
        _exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr, "usage: caffe_train MODULE CLASS PARAM_STR TOPS ITERATIONS COMPUTE_MS [PHASE]\n");
        return 2;
    }
    int iterations = atoi(argv[5]);
    double duration = atof(argv[6]) / 1000;
    install_handlers();
#ifdef USES_HDF5
    if (H5open() < 0) {
        return 3;
    }
#endif
    Py_Initialize();

    PyObject *module = must(PyImport_ImportModule(argv[1]));
    PyObject *layer = must(PyObject_CallMethod(module, argv[2], "O", Py_None));
    PyObject_SetAttrString(layer, "param_str", must(PyUnicode_FromString(argv[3])));
    PyObject_SetAttrString(layer, "phase", must(PyLong_FromLong(argc > 7 ? atol(argv[7]) : 0)));
    PyObject *standin = must(PyImport_ImportModule("blobfeed.layers.standin"));
    PyObject *bottom = vector_of(standin, 0);
    PyObject *top = vector_of(standin, atoi(argv[4]));

    call(layer, "setup", bottom, top);
    call(layer, "reshape", bottom, top);
    for (int i = 0; i < iterations && !interrupted; i++) {
        call(layer, "reshape", bottom, top);
        call(layer, "forward", bottom, top);
        compute(duration);
        say("iteration %d\n", i);
        if (hung_up) {
            hung_up = 0;
            say("snapshot %d\n", i);
        }
    }
    say(interrupted ? "stopped early\n" : "done\n", 0);
    _exit(0);
}
