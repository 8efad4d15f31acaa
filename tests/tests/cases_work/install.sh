# An installation of the packages that come by standard input.
tar --extract
python3 -m venv --system-site-packages env
env/bin/pip install --quiet --no-index --no-cache-dir --no-build-isolation --find-links archives dusk
env/bin/dusk
env/bin/pip check
env/bin/pip list --local --format freeze
env/bin/pip uninstall --quiet --yes hour0
env/bin/dusk && exit 1
env/bin/pip install --quiet --no-index --no-cache-dir --find-links archives dusk
env/bin/dusk
python3 -c "$LISTING" env
