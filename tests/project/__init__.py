"""What surrounds the code: the build, the packages made by it, the image, the files for running it elsewhere."""
